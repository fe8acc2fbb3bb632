// Package pushes measures the cost of many queued pushes to one repository.
package pushes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/cli/term"
)

// bench holds the flags.
type bench struct {
	pushes, processes, files int
	timeout                  time.Duration
}

// NewCommand returns the command bench pushes.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.Command(std, &cobra.Command{
		Use:   "pushes",
		Short: "Measure what many queued pushes to one repository cost",
		Long: "Queue many pushes to one real repository, each with another commit, start worker processes, and print\n" +
			"how long it takes until each push has its result, and how many ls-remotes and fetches that takes. It fails\n" +
			"if a push has no result, or more than one. Needs git and redis-server, of which it starts a private one.",
		Example: "  go run ./bench pushes\n  go run ./bench pushes --pushes 1000 --processes 4 --json",
	}, b.check, b.run)
	flags := cmd.Flags()
	flags.IntVar(&b.pushes, "pushes", 10_000, "number of queued pushes")
	flags.IntVar(&b.processes, "processes", 2, "number of worker processes")
	flags.IntVar(&b.files, "files", 50, "number of files in the repository")
	flags.DurationVar(&b.timeout, "timeout", 5*time.Minute, "when to give up")
	return cmd
}

func (b *bench) check(func(string) bool) error {
	if b.pushes < 1 || b.processes < 1 || b.files < 1 || b.timeout <= 0 {
		return errors.New("--pushes, --processes, --files and --timeout: want at least 1 of each")
	}
	return nil
}

// Report is the outcome of the pushes.
type Report struct {
	Machine    rig.Machine   `json:"machine"`
	Pushes     int           `json:"pushes"`
	Processes  int           `json:"processes"`
	Took       time.Duration `json:"took_ns"` // from the start of the first process to the last result
	Fetches    int           `json:"fetches"`
	Asked      int           `json:"asked"` // ls-remotes
	Unanswered int           `json:"unanswered"`
	Repeated   int           `json:"repeated"` // pushes with more than one result
	Wrong      int           `json:"wrong"`    // results that failed or are not of the last commit
}

func (b *bench) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	server, err := env.OpenRedis(ctx, "")
	if err != nil {
		return nil, err
	}
	git, err := env.StartGit()
	if err != nil {
		return nil, err
	}
	const repo = "bench/pushes"
	commits, err := rig.CommitPushes(ctx, git, repo, b.files, b.pushes)
	if err != nil {
		return nil, err
	}
	results, err := queue(ctx, server, git.URL(repo), commits)
	if err != nil {
		return nil, err
	}
	if _, err := env.Lockstep(ctx); err != nil { // do not measure the build
		return nil, err
	}

	began := time.Now()
	workers := make([]*rig.Process, b.processes)
	for i := range workers {
		workers[i], err = env.StartLockstep(ctx, "serve", "--roles", "worker", "--redis", server.URL, "--root", filepath.Join(env.Dir, "root"),
			"--log-level", "error")
		if err != nil {
			return nil, err
		}
	}
	if err := rig.AwaitResults(ctx, server.Client, events.DefaultNamespace, int64(b.pushes), 5*time.Millisecond); err != nil {
		return nil, fmt.Errorf("await the results: %w\n%s", err, workers[0].Log())
	}
	stats := git.Stats(repo)
	report := Report{
		Machine: server.Machine(), Pushes: b.pushes, Processes: b.processes,
		Took: time.Since(began), Fetches: stats.UploadPacks, Asked: stats.InfoRefs,
	}
	for _, worker := range workers {
		_ = worker.Stop()
	}
	err = report.count(ctx, server, results, commits[len(commits)-1])
	return report, err
}

// queue publishes a change for each commit, and returns the count of each change's results, 0.
func queue(ctx context.Context, server *rig.Redis, url string, commits []string) (rig.Results, error) {
	results := rig.Results{}
	for _, commit := range commits {
		change, err := rig.Publish(ctx, server.Client, events.DefaultNamespace, events.Change{URL: url, After: commit})
		if err != nil {
			return nil, err
		}
		results[change.ID] = 0
	}
	return results, nil
}

// count counts the results of each change.
func (r *Report) count(ctx context.Context, server *rig.Redis, counts rig.Results, last string) error {
	results, _, err := rig.ReadResults(ctx, server.Client, events.DefaultNamespace, "")
	if err != nil {
		return err
	}
	for _, result := range results {
		if result.Type != events.ResultSynced || result.After != last {
			r.Wrong++
		}
		for _, id := range result.Deliveries {
			counts[id]++
		}
	}
	r.Unanswered, r.Repeated = counts.Count()
	return nil
}

// Verdict returns an error unless each push has exactly one result, and the right one.
func (r Report) Verdict() error {
	return rig.Faults(rig.Fault{What: "pushes without a result", Count: r.Unanswered},
		rig.Fault{What: "pushes with several results", Count: r.Repeated}, rig.Fault{What: "wrong results", Count: r.Wrong})
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s\n%d queued pushes to one repository, %d worker processes\n\n", r.Machine, r.Pushes, r.Processes)
	list := rig.NewList(w)
	fmt.Fprintf(list, "all done after\t%.2f s, including the start of the processes\n", r.Took.Seconds())
	fmt.Fprintf(list, "fetches\t%d\nls-remotes\t%d\n", r.Fetches, r.Asked)
	fmt.Fprintf(list, "pushes without a result\t%d\nwith more than one\t%d\n", r.Unanswered, r.Repeated)
	return list.Flush()
}
