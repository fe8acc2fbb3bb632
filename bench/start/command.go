package start

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/availability"
	"lockstep/bench/idle"
	"lockstep/bench/rig"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/stats"
)

// startBench is what the flags of bench start say.
type startBench struct {
	redis  string
	repos  int
	starts int
	out    term.Output
}

func NewCommand(std term.Streams) *cobra.Command {
	var b startBench
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Measure how long a service takes to be ready",
		Long: "Have many small repositories watched and one worker sync them, as bench idle does; then start a service\n" +
			"with all roles on that Redis and that volume again and again, and see after what time it says that it is ready.\n" +
			"Without --redis it starts a private redis-server.",
		Example: "  go run ./bench start\n  bench start --repos 10000 --starts 10 -o json",
		Args:    term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.repos < 1 || b.starts < 1 {
				return term.UsageError(errors.New("want at least one repository, and one start"))
			}
			app.SilenceRedis()
			report, err := b.Run(cmd.Context(), std)
			if err != nil {
				return err
			}
			return report.Print(std.Stdout, b.out)
		},
	}
	cmd.Flags().StringVar(&b.redis, "redis", "", "Redis `URL` to measure on (default: a private redis-server)")
	cmd.Flags().IntVar(&b.repos, "repos", 1000, "repositories")
	cmd.Flags().IntVar(&b.starts, "starts", 10, "how many starts are measured")
	b.out.Add(cmd)
	return cmd
}

// StartReport is how long starts took.
type StartReport struct {
	Machine rig.Machine     `json:"machine"`
	Repos   int             `json:"repos"`
	Took    []time.Duration `json:"took_ns"` // from the start of the process until it is ready
	P50     time.Duration   `json:"p50_ns"`
	Max     time.Duration   `json:"max_ns"`
}

func (r StartReport) Print(w io.Writer, out term.Output) error {
	if !out.IsTable() {
		return out.Document(w, r)
	}
	_, err := fmt.Fprintf(w, "%s; %d watched repositories, all on the volume\nready after %s ms (median of %d starts), %s ms at most\n",
		r.Machine, r.Repos, rig.Millis(r.P50), len(r.Took), rig.Millis(r.Max))
	return err
}

func (b *startBench) Run(ctx context.Context, std term.Streams) (StartReport, error) {
	report := StartReport{Repos: b.repos}
	server, err := rig.OpenRedis(ctx, b.redis)
	if err != nil {
		return report, err
	}
	defer server.Close()
	report.Machine = server.Machine()
	dir, err := os.MkdirTemp("", "lockstep-bench-start-")
	if err != nil {
		return report, err
	}
	defer os.RemoveAll(dir)
	idle := idle.Bench{Repos: b.repos}
	git, err := idle.ServeRepos(ctx, filepath.Join(dir, "git"))
	if err != nil {
		return report, err
	}
	defer git.Close()
	w := &availability.Workers{Deployment: &availability.Deployment{Dir: dir}, Std: std, Server: server}
	if w.Program, err = rig.Program(ctx, std, dir); err != nil {
		return report, err
	}
	fmt.Fprintf(std.Stderr, "syncing %d repositories\n", b.repos)
	worker, err := w.Start(ctx, config.RoleWorker+","+config.RoleScheduler)
	if err != nil {
		return report, err
	}
	defer func() { _ = worker.Kill() }()
	if err := idle.SyncAll(ctx, server, git); err != nil {
		return report, err
	}
	if err := idle.SpreadPolls(ctx, server); err != nil {
		return report, err
	}
	for i := range b.starts {
		fmt.Fprintf(std.Stderr, "start %d of %d\n", i+1, b.starts)
		took, err := b.once(ctx, w)
		if err != nil {
			return report, err
		}
		report.Took = append(report.Took, took)
	}
	report.P50, report.Max = stats.Median(report.Took), slices.Max(report.Took)
	return report, nil
}

// once starts a service, and stops it when it is ready.
func (b *startBench) once(ctx context.Context, w *availability.Workers) (time.Duration, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	address := listener.Addr().String() // nobody else's for the next few milliseconds
	if err := listener.Close(); err != nil {
		return 0, err
	}
	service := w.Command(ctx, "serve", "--listen", address)
	began := time.Now()
	if err := service.Cmd.Start(); err != nil {
		return 0, fmt.Errorf("start a service: %w", err)
	}
	err = awaitReady(ctx, "http://"+address+"/readyz", time.Minute)
	took := time.Since(began)
	_ = service.Cmd.Process.Signal(syscall.SIGTERM)
	if ended := service.Cmd.Wait(); err != nil || ended != nil {
		return 0, fmt.Errorf("a service that starts and stops: %w\n%s", errors.Join(err, ended), service.Said.String())
	}
	return took, nil
}

// awaitReady returns once the URL is answered 200.
func awaitReady(ctx context.Context, url string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		if !app.Sleep(ctx, 2*time.Millisecond) {
			return fmt.Errorf("it is not ready: %w", context.Cause(ctx))
		}
	}
}
