package pushes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/gitserver"
)

// Bench is what the flags of bench pushes say.
type Bench struct {
	Pushes    int
	processes int
	Files     int
	timeout   time.Duration
	out       term.Output
}

func NewCommand(std term.Streams) *cobra.Command {
	var b Bench
	cmd := &cobra.Command{
		Use:   "pushes",
		Short: "Measure what many queued pushes to one repository cost",
		Long: "Queue many pushes to one real repository, each announcing its own commit, start worker processes, and\n" +
			"print how long it takes until each push has its result, and how often the remote was asked and fetched\n" +
			"from. It fails if a push has no result, or more than one. Needs git and\n" +
			"redis-server, of which it starts a private one.",
		Example: "  go run ./bench pushes\n  bench pushes --pushes 1000 --processes 4 --json",
		Args:    term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.Pushes < 1 || b.processes < 1 || b.Files < 1 || b.timeout <= 0 {
				return term.UsageError(errors.New("--pushes, --processes, --files and --timeout: want at least 1 of each"))
			}
			app.SilenceRedis()
			dir, err := os.MkdirTemp("", "lockstep-bench-pushes-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			ctx, cancel := context.WithTimeout(cmd.Context(), b.timeout)
			defer cancel()
			report, err := b.Run(ctx, std, dir)
			if err != nil {
				return err
			}
			if err := report.Print(std.Stdout, b.out); err != nil {
				return err
			}
			return report.fault()
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&b.Pushes, "pushes", 10_000, "how many pushes are queued")
	flags.IntVar(&b.processes, "processes", 2, "how many worker processes")
	flags.IntVar(&b.Files, "files", 50, "how many files the repository has")
	flags.DurationVar(&b.timeout, "timeout", 5*time.Minute, "when to give up")
	b.out.Add(cmd)
	return cmd
}

// PushesReport says what came of the pushes.
type PushesReport struct {
	Machine    rig.Machine   `json:"machine"`
	Pushes     int           `json:"pushes"`
	Processes  int           `json:"processes"`
	Took       time.Duration `json:"took_ns"` // from the start of the first process to the last result
	Fetches    int           `json:"fetches"`
	Asked      int           `json:"asked"` // how often the remote was asked for its refs
	Unanswered int           `json:"unanswered"`
	Repeated   int           `json:"repeated"` // pushes with more than one result
	Wrong      int           `json:"wrong"`    // results that are no success, or not of the last commit
}

func (b *Bench) Run(ctx context.Context, std term.Streams, dir string) (report PushesReport, err error) {
	server, err := rig.OpenRedis(ctx, "")
	if err != nil {
		return report, err
	}
	defer server.Close()
	git, err := gitserver.Start(filepath.Join(dir, "remote"))
	if err != nil {
		return report, err
	}
	defer git.Close()
	const repo = "bench/pushes"
	commits, err := b.Commit(ctx, git, repo)
	if err != nil {
		return report, err
	}
	const namespace = events.DefaultNamespace // the Redis is our own
	ids, err := b.queue(ctx, server, namespace, git.URL(repo), commits)
	if err != nil {
		return report, err
	}

	began := time.Now()
	stop, err := b.Start(ctx, std, server, dir)
	defer stop()
	if err != nil {
		return report, err
	}
	for n := int64(0); n < int64(b.Pushes); {
		select {
		case <-ctx.Done():
			return report, fmt.Errorf("after %d of %d results: %w", n, b.Pushes, context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
		if n, err = server.Client.XLen(ctx, namespace.Results()).Result(); err != nil {
			return report, err
		}
	}
	stats := git.Stats(repo)
	report = PushesReport{
		Machine: server.Machine(), Pushes: b.Pushes, Processes: b.processes,
		Took: time.Since(began), Fetches: stats.UploadPacks, Asked: stats.InfoRefs,
	}
	stop()
	return report, report.count(ctx, server, namespace, ids, commits[len(commits)-1])
}

// Commit makes a repository with as many commits as there will be pushes, and returns them in order.
func (b *Bench) Commit(ctx context.Context, git *gitserver.Server, repo string) ([]string, error) {
	files := make(map[string]string, b.Files)
	for i := range b.Files {
		files[fmt.Sprintf("src/file-%d.txt", i)] = strings.Repeat(fmt.Sprintf("line of file %d\n", i), 40)
	}
	base, err := git.Create(ctx, repo, files)
	if err != nil {
		return nil, err
	}
	var script bytes.Buffer
	for i := range b.Pushes {
		fmt.Fprintf(&script, "commit refs/heads/%s\ncommitter Bench <bench@example.com> %d +0000\ndata 4\npush\n", gitserver.Main, 1_700_000_000+i)
		if i == 0 {
			fmt.Fprintf(&script, "from %s\n", base)
		}
		content := fmt.Sprintf("push %d\n", i)
		fmt.Fprintf(&script, "M 100644 inline src/file-%d.txt\ndata %d\n%s\n", i%b.Files, len(content), content)
	}
	script.WriteString("done\n")
	if _, err := git.Git(ctx, repo, script.String(), "fast-import", "--quiet", "--force", "--done"); err != nil {
		return nil, err
	}
	list, err := git.Git(ctx, repo, "", "rev-list", "--reverse", base+"..refs/heads/"+gitserver.Main)
	if err != nil {
		return nil, err
	}
	commits := strings.Fields(list)
	if len(commits) != b.Pushes {
		return nil, fmt.Errorf("the sample repository has %d commits; want %d", len(commits), b.Pushes)
	}
	return commits, nil
}

// queue publishes a change for each commit and returns their ids.
func (b *Bench) queue(ctx context.Context, server *rig.Redis, namespace events.Namespace, url string, commits []string) (map[string]int, error) {
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Redis: server.Client})
	if err != nil {
		return nil, err
	}
	ids := make(map[string]int, len(commits))
	for _, commit := range commits {
		change, err := events.NewChange(events.Change{URL: url, Source: "/lockstep/bench", After: commit})
		if err != nil {
			return nil, err
		}
		var msg *message.Message
		if msg, err = stream.ChangeMessage(change); err != nil {
			return nil, err
		}
		if err := publisher.Publish(namespace.Changes(), msg); err != nil {
			return nil, err
		}
		ids[change.ID] = 0
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return ids, nil
}

// Start starts the worker processes; stop ends them.
func (b *Bench) Start(ctx context.Context, std term.Streams, server *rig.Redis, dir string) (stop func(), err error) {
	program, err := rig.Program(ctx, std, dir)
	if err != nil {
		return func() {}, err
	}
	var workers []*exec.Cmd
	stop = func() {
		for _, worker := range workers {
			_ = worker.Process.Signal(syscall.SIGTERM)
			_ = worker.Wait()
		}
		workers = nil
	}
	for range b.processes {
		worker := exec.Command(program, "serve", "--roles", "worker", "--redis", server.Url, "--root", filepath.Join(dir, "root"),
			"--log-level", "error")
		worker.Dir = dir // where no lockstep.yaml is
		worker.Env = slices.DeleteFunc(slices.Clone(std.Environ), func(pair string) bool { return strings.HasPrefix(pair, config.EnvPrefix) })
		worker.Stdout, worker.Stderr = std.Stderr, std.Stderr
		if err := worker.Start(); err != nil {
			return stop, fmt.Errorf("start a worker: %w", err)
		}
		workers = append(workers, worker)
	}
	return stop, nil
}

// count counts what the results say.
func (r *PushesReport) count(ctx context.Context, server *rig.Redis, namespace events.Namespace, ids map[string]int, last string) error {
	entries, err := server.Client.XRange(ctx, namespace.Results(), "-", "+").Result()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		payload, _ := entry.Values["payload"].(string)
		result, err := events.ParseResult([]byte(payload))
		if err != nil {
			return err
		}
		if result.Type != events.ResultSynced || result.After != last {
			r.Wrong++
		}
		for _, id := range result.Deliveries {
			ids[id]++
		}
	}
	for _, n := range ids {
		switch {
		case n == 0:
			r.Unanswered++
		case n > 1:
			r.Repeated++
		}
	}
	return nil
}

// fault is what must not be.
func (r *PushesReport) fault() error {
	if r.Unanswered+r.Repeated+r.Wrong > 0 {
		return fmt.Errorf("%d pushes have no result, %d have several, %d results are wrong", r.Unanswered, r.Repeated, r.Wrong)
	}
	return nil
}

func (r *PushesReport) Print(w io.Writer, out term.Output) error {
	if !out.IsTable() {
		return out.Document(w, r)
	}
	fmt.Fprintf(w, "%s\n%d pushes to one repository, queued, %d worker processes\n\n", r.Machine, r.Pushes, r.Processes)
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(tw, "all done after\t%.2f s, the start of the processes included\n", r.Took.Seconds())
	fmt.Fprintf(tw, "fetches\t%d\n", r.Fetches)
	fmt.Fprintf(tw, "remote asked\t%d times\n", r.Asked)
	fmt.Fprintf(tw, "pushes without a result\t%d\n", r.Unanswered)
	fmt.Fprintf(tw, "with more than one\t%d\n", r.Repeated)
	return tw.Flush()
}
