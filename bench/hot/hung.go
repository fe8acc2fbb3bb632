package hot

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/cli/term"
	"lockstep/internal/gitserver"
)

// hung is the case of hosts that accept connections and never answer.
type hung struct {
	workload
	repos, hosts   int
	calm, duration time.Duration
}

func newHungCommand(std term.Streams) *cobra.Command {
	var c hung
	cmd := newCase(std, &cobra.Command{
		Use:   "hung",
		Short: "Changes on a good host beside repositories on hosts that never answer",
		Long: "Push a commit to a repository every second, and measure the time from the change to the published tree: first\n" +
			"alone, then beside repositories on hosts that accept connections and never answer.",
	}, func() error {
		return atLeastOne("--repos, --hosts, --processes, --slots, --calm and --duration", int64(c.repos), int64(c.hosts), int64(c.processes),
			int64(c.slots), int64(c.calm/time.Second), int64(c.duration/time.Second))
	}, c.run)
	c.addFlags(cmd.Flags(), 1, 8)
	cmd.Flags().IntVar(&c.repos, "repos", 100, "number of repositories on hosts that never answer")
	cmd.Flags().IntVar(&c.hosts, "hosts", 1, "number of hosts that never answer; each is another port of one address")
	cmd.Flags().DurationVar(&c.calm, "calm", 15*time.Second, "how long to measure without them")
	cmd.Flags().DurationVar(&c.duration, "duration", time.Minute, "how long to measure with them")
	return cmd
}

func (c *hung) run(ctx context.Context, env *rig.Env, server *rig.Redis) (rig.Report, error) {
	git, err := env.StartGit()
	if err != nil {
		return nil, err
	}
	const repo = "bench/good"
	if _, err := git.Create(ctx, repo, map[string]string{"a.txt": "first\n"}); err != nil {
		return nil, err
	}
	dead, err := c.deadURLs(env)
	if err != nil {
		return nil, err
	}
	changes, err := newLedger(server, events.DefaultNamespace)
	if err != nil {
		return nil, err
	}
	if _, err := c.startServices(ctx, env, server); err != nil {
		return nil, err
	}

	push := func(d time.Duration) ([]string, error) {
		return changes.publishEvery(ctx, time.Second, int(d/time.Second), func(i int) (events.Change, error) {
			files := map[string]string{"a.txt": fmt.Sprintf("%v %d\n", d, i)}
			commit, err := git.Commit(ctx, repo, gitserver.Main, gitserver.Edit{Write: files})
			return events.Change{URL: git.URL(repo), After: commit}, err
		})
	}
	if err := changes.warmUp(ctx, git.URL(repo)); err != nil {
		return nil, err
	}
	env.Progress("%v without hanging hosts", c.calm)
	ids, err := push(c.calm)
	if err != nil {
		return nil, err
	}
	calm, err := changes.latency(ctx, ids, rig.RoundGrace)
	if err != nil {
		return nil, err
	}
	env.Progress("%v with them", c.duration)
	if _, err := changes.publishURLs(ctx, 0, dead); err != nil {
		return nil, err
	}
	if ids, err = push(c.duration); err != nil {
		return nil, err
	}
	return c.report(ctx, changes, calm, ids)
}

// deadURLs returns the URLs of repositories that take turns over the hosts that never answer.
func (c *hung) deadURLs(env *rig.Env) ([]string, error) {
	urls := make([]string, c.repos)
	for i := range min(c.hosts, c.repos) {
		host, err := env.ServeHost(2, http.HandlerFunc(hanging))
		if err != nil {
			return nil, err
		}
		for repo := i; repo < c.repos; repo += c.hosts {
			urls[repo] = fmt.Sprintf("%sbench/hung-%d.git", host.Base, repo)
		}
	}
	return urls, nil
}

func (c *hung) report(ctx context.Context, changes *ledger, calm Latency, ids []string) (rig.Report, error) {
	loaded, err := changes.latency(ctx, ids, 5*time.Second)
	if err != nil {
		return nil, err
	}
	report := newCaseReport("hung", "%d repositories on hosts that never answer (%d), a push a second to another host, %d processes × %d slots",
		c.repos, c.hosts, c.processes, c.slots)
	report.compare(calm, loaded)
	report.addWithin(1000, "longest, ms", float64(loaded.Max.Milliseconds()))
	minute := 0
	for part := range slices.Chunk(ids, 60) {
		minute++
		latency, err := changes.latency(ctx, part, 0)
		if err != nil {
			return nil, err
		}
		report.add(fmt.Sprintf("longest in minute %d, ms", minute), float64(latency.Max.Milliseconds()))
	}
	return report, nil
}

// hanging never answers.
func hanging(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
