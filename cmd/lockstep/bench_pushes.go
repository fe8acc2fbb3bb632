package main

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

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/config"
	"lockstep/internal/gitserver"
)

// pushesBench is what the flags of lockstep bench pushes say.
type pushesBench struct {
	pushes    int
	processes int
	files     int
	timeout   time.Duration
	out       output
}

func newBenchPushesCommand(std streams) *cobra.Command {
	var b pushesBench
	cmd := &cobra.Command{
		Use:   "pushes",
		Short: "Measure what many queued pushes to one repository cost",
		Long: "Queue many pushes to one real repository, each announcing its own commit, start worker processes, and\n" +
			"print how long it takes until each push has its result, and how often the remote was asked and fetched\n" +
			"from. It fails if a push has no result, or more than one. Needs git and\n" +
			"redis-server, of which it starts a private one.",
		Example: "  lockstep bench pushes\n  lockstep bench pushes --pushes 1000 --processes 4 --json",
		Args:    wrongUse(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.pushes < 1 || b.processes < 1 || b.files < 1 || b.timeout <= 0 {
				return usageError(errors.New("--pushes, --processes, --files and --timeout: want at least 1 of each"))
			}
			silenceRedis()
			dir, err := os.MkdirTemp("", "lockstep-bench-pushes-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			ctx, cancel := context.WithTimeout(cmd.Context(), b.timeout)
			defer cancel()
			report, err := b.run(ctx, std, dir)
			if err != nil {
				return err
			}
			if err := report.print(std.stdout, b.out); err != nil {
				return err
			}
			return report.fault()
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&b.pushes, "pushes", 10_000, "how many pushes are queued")
	flags.IntVar(&b.processes, "processes", 2, "how many worker processes")
	flags.IntVar(&b.files, "files", 50, "how many files the repository has")
	flags.DurationVar(&b.timeout, "timeout", 5*time.Minute, "when to give up")
	b.out.add(cmd)
	return cmd
}

// pushesReport says what came of the pushes.
type pushesReport struct {
	Machine    benchMachine  `json:"machine"`
	Pushes     int           `json:"pushes"`
	Processes  int           `json:"processes"`
	Took       time.Duration `json:"took_ns"` // from the start of the first process to the last result
	Fetches    int           `json:"fetches"`
	Asked      int           `json:"asked"` // how often the remote was asked for its refs
	Unanswered int           `json:"unanswered"`
	Repeated   int           `json:"repeated"` // pushes with more than one result
	Wrong      int           `json:"wrong"`    // results that are no success, or not of the last commit
}

func (b *pushesBench) run(ctx context.Context, std streams, dir string) (report pushesReport, err error) {
	server, err := openBenchRedis(ctx, "")
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
	commits, err := b.commit(ctx, git, repo)
	if err != nil {
		return report, err
	}
	const namespace = events.DefaultNamespace // the Redis is our own
	ids, err := b.queue(ctx, server, namespace, git.URL(repo), commits)
	if err != nil {
		return report, err
	}

	began := time.Now()
	stop, err := b.start(std, server, dir)
	defer stop()
	if err != nil {
		return report, err
	}
	for n := int64(0); n < int64(b.pushes); {
		select {
		case <-ctx.Done():
			return report, fmt.Errorf("after %d of %d results: %w", n, b.pushes, context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
		if n, err = server.client.XLen(ctx, namespace.Results()).Result(); err != nil {
			return report, err
		}
	}
	stats := git.Stats(repo)
	report = pushesReport{
		Machine: server.machine(), Pushes: b.pushes, Processes: b.processes,
		Took: time.Since(began), Fetches: stats.UploadPacks, Asked: stats.InfoRefs,
	}
	stop()
	return report, report.count(ctx, server, namespace, ids, commits[len(commits)-1])
}

// commit makes a repository with as many commits as there will be pushes, and returns them in order.
func (b *pushesBench) commit(ctx context.Context, git *gitserver.Server, repo string) ([]string, error) {
	files := make(map[string]string, b.files)
	for i := range b.files {
		files[fmt.Sprintf("src/file-%d.txt", i)] = strings.Repeat(fmt.Sprintf("line of file %d\n", i), 40)
	}
	base, err := git.Create(ctx, repo, files)
	if err != nil {
		return nil, err
	}
	var script bytes.Buffer
	for i := range b.pushes {
		fmt.Fprintf(&script, "commit refs/heads/%s\ncommitter Bench <bench@example.com> %d +0000\ndata 4\npush\n", gitserver.Main, 1_700_000_000+i)
		if i == 0 {
			fmt.Fprintf(&script, "from %s\n", base)
		}
		content := fmt.Sprintf("push %d\n", i)
		fmt.Fprintf(&script, "M 100644 inline src/file-%d.txt\ndata %d\n%s\n", i%b.files, len(content), content)
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
	if len(commits) != b.pushes {
		return nil, fmt.Errorf("the sample repository has %d commits; want %d", len(commits), b.pushes)
	}
	return commits, nil
}

// queue publishes a change for each commit and returns their ids.
func (b *pushesBench) queue(ctx context.Context, server *benchRedis, namespace events.Namespace, url string, commits []string) (map[string]int, error) {
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Redis: server.client})
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

// start starts the worker processes; stop ends them.
func (b *pushesBench) start(std streams, server *benchRedis, dir string) (stop func(), err error) {
	program, err := os.Executable()
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
		worker := exec.Command(program, "serve", "--roles", "worker", "--redis", server.url, "--root", filepath.Join(dir, "root"),
			"--log-level", "error")
		worker.Dir = dir // where no lockstep.yaml is
		worker.Env = slices.DeleteFunc(slices.Clone(std.environ), func(pair string) bool { return strings.HasPrefix(pair, config.EnvPrefix) })
		worker.Stdout, worker.Stderr = std.stderr, std.stderr
		if err := worker.Start(); err != nil {
			return stop, fmt.Errorf("start a worker: %w", err)
		}
		workers = append(workers, worker)
	}
	return stop, nil
}

// count counts what the results say.
func (r *pushesReport) count(ctx context.Context, server *benchRedis, namespace events.Namespace, ids map[string]int, last string) error {
	entries, err := server.client.XRange(ctx, namespace.Results(), "-", "+").Result()
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
func (r *pushesReport) fault() error {
	if r.Unanswered+r.Repeated+r.Wrong > 0 {
		return fmt.Errorf("%d pushes have no result, %d have several, %d results are wrong", r.Unanswered, r.Repeated, r.Wrong)
	}
	return nil
}

func (r *pushesReport) print(w io.Writer, out output) error {
	if !out.isTable() {
		return out.document(w, r)
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
