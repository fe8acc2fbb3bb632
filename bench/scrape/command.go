// Package scrape measures the cost of Prometheus scrapes for a service.
package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/bench/hooks"
	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/stats"
	"lockstep/internal/telemetry"
)

// bench holds the flags.
type bench struct {
	repos, scrapes, connections, rounds int
	duration                            time.Duration
}

// NewCommand returns the command bench scrape.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.RedisCommand(std, &cobra.Command{
		Use:   "scrape",
		Short: "Measure what it costs to be scraped by Prometheus",
		Long: "Write the state of many repositories to Redis, and let a service with all roles sync some; then scrape its\n" +
			"metrics many times, and measure the processor time, the Redis commands and the number of series. Then send\n" +
			"webhooks to a receiver, and measure how many fewer it accepts while it is scraped once a second, and twenty\n" +
			"times. Without --redis it starts a private redis-server.",
		Example: "  go run ./bench scrape\n  go run ./bench scrape --repos 1000 --scrapes 100 --rounds 1 -o json",
	}, b.check, b.run)
	flags := cmd.Flags()
	flags.IntVar(&b.repos, "repos", 100_000, "number of repositories in Redis")
	flags.IntVar(&b.scrapes, "scrapes", 500, "number of scrapes to measure")
	flags.IntVar(&b.connections, "connections", 8, "number of connections that send webhooks")
	flags.DurationVar(&b.duration, "duration", 3*time.Second, "how long to send webhooks in each round")
	flags.IntVar(&b.rounds, "rounds", 5, "number of rounds; the figures are medians")
	return cmd
}

func (b *bench) check(func(string) bool) error {
	if b.repos < 0 || b.scrapes < 1 || b.connections < 1 || b.rounds < 1 || b.duration < time.Second {
		return errors.New("want at least one of each, and 1s")
	}
	return nil
}

// Report is the cost of scrapes.
type Report struct {
	Machine  rig.Machine   `json:"machine"`
	Repos    int           `json:"repos"`
	Series   int           `json:"series"`
	Bytes    int           `json:"bytes"`
	Took     time.Duration `json:"took_ns"`     // one scrape, median
	CPU      time.Duration `json:"cpu_ns"`      // of service and Redis, for one scrape
	Commands float64       `json:"commands"`    // to Redis, for one scrape
	Fresh    time.Duration `json:"fresh_ns"`    // additional CPU time of a scrape that must read the streams' figures again
	Asks     float64       `json:"fresh_asks"`  // additional commands of such a scrape
	Every15s float64       `json:"core_at_15s"` // share of a core, of service and Redis
	Every1s  float64       `json:"core_at_1s"`

	Unwatched []round `json:"unwatched"` // without scrapes
	Once      []round `json:"at_1s"`     // scraped once a second
	Often     []round `json:"at_50ms"`
}

// round is one round of webhooks to a receiver.
type round struct {
	PerSecond float64       `json:"per_second"`
	Each      time.Duration `json:"each_ns"` // the receiver's processor time for one, including that for scrapes
}

// against compares rounds with those without scrapes: webhooks a second, and processor time for each.
func against(rounds, unwatched []round) (perSecond, each float64) {
	var rates, costs []float64
	for i, r := range rounds {
		rates = append(rates, r.PerSecond/unwatched[i].PerSecond)
		costs = append(costs, float64(r.Each)/float64(unwatched[i].Each))
	}
	return stats.Median(rates), stats.Median(costs)
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	onceRate, onceCost := against(r.Once, r.Unwatched)
	oftenRate, oftenCost := against(r.Often, r.Unwatched)
	_, err := fmt.Fprintf(w, "%s; %d repositories in Redis\n"+
		"a scrape: %d series, %d kB, %s ms; %.2f ms of processor time, including Redis, and %.1f commands; %.2f ms and %.1f more every 5 s\n"+
		"every 15 s that is %.4f %% of a core, every second %.3f %%\n"+
		"webhooks, medians of %d rounds, against no scrapes:\n"+
		"  scraped once a second: %.3f of them, %.3f of the processor time for each\n"+
		"  scraped 20 times:      %.3f of them, %.3f of the processor time for each\n",
		r.Machine, r.Repos, r.Series, r.Bytes/1000, rig.Millis(r.Took), r.CPU.Seconds()*1000, r.Commands, r.Fresh.Seconds()*1000, r.Asks,
		100*r.Every15s, 100*r.Every1s, len(r.Unwatched), onceRate, onceCost, oftenRate, oftenCost)
	return err
}

func (b *bench) run(ctx context.Context, env *rig.Env, server *rig.Redis) (rig.Report, error) {
	namespace := rig.NewNamespace()
	env.Cleanup(func() { server.Clear(ctx, string(namespace)) })
	report := Report{Machine: server.Machine(), Repos: b.repos}
	env.Progress("writing the state of %d repositories to Redis", b.repos)
	if err := WriteRepos(ctx, server.Client, namespace, b.repos); err != nil {
		return nil, err
	}
	if err := b.alone(ctx, env, server, namespace, &report); err != nil {
		return nil, err
	}
	err := b.underLoad(ctx, env, server, namespace, &report)
	return report, err
}

// WriteRepos writes the state of n repositories, as syncs leave it.
func WriteRepos(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, n int) error {
	const atOnce = 200
	for from := 0; from < n; from += atOnce {
		_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := from; i < min(from+atOnce, n); i++ {
				repo, err := events.ParseRepoPath(fmt.Sprintf("known/repo-%06d", i))
				if err != nil {
					return err
				}
				commit := fmt.Sprintf("%040x", i)
				pipe.HSet(ctx, namespace.Repo(repo), "repo", repo.String(), "url", "https://git.example.com/"+repo.String(), "fence", i+1,
					"synced", "2026-11-21T01:02:03Z", "head:refs/heads/main", commit, fmt.Sprintf("given:refs/heads/main:app-%d", i%500), commit)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("write the state of repositories: %w", err)
		}
	}
	return nil
}

// alone scrapes an idle service with all roles that has synced some repositories.
func (b *bench) alone(ctx context.Context, env *rig.Env, server *rig.Redis, namespace events.Namespace, report *Report) error {
	fleet, err := env.ServeFleet(ctx, 50)
	if err != nil {
		return err
	}
	service, addr, err := env.Serve(ctx, "--redis", server.URL, "--prefix", string(namespace), "--root", filepath.Join(env.Dir, "root"),
		"--log-level", "info")
	if err != nil {
		return err
	}
	defer func() { _ = service.Kill() }() // before webhooks are measured
	if err := fleet.Sync(ctx, server.Client, namespace); err != nil {
		return err
	}
	env.Progress("scraping %d times", b.scrapes)
	if _, err := Scrape(ctx, addr); err != nil { // warm-up
		return err
	}
	var took []time.Duration
	report.CPU, report.Commands, err = b.cost(ctx, service.Cmd.Process.Pid, server, func() error {
		began := time.Now()
		text, err := Scrape(ctx, addr)
		took = append(took, time.Since(began))
		report.Series, report.Bytes = CountSeries(text), len(text)
		return err
	})
	if err != nil {
		return err
	}
	report.Took = stats.NewLatency(took).P50
	// The additional cost of a scrape that finds the streams' figures expired, measured in this process.
	report.Fresh, report.Asks, err = b.cost(ctx, os.Getpid(), server, func() error {
		_, err := telemetry.NewStreams(server.Client, string(namespace), namespace.Changes(), namespace.Results()).Read(ctx)
		return err
	})
	if err != nil {
		return err
	}
	report.Every15s = (report.CPU + report.Fresh).Seconds() / 15
	report.Every1s = report.CPU.Seconds() + report.Fresh.Seconds()/5
	return nil
}

// cost calls f for each scrape, and returns the CPU time of a process and Redis, and the commands to Redis, per call.
func (b *bench) cost(ctx context.Context, pid int, server *rig.Redis, f func() error) (cpu time.Duration, commands float64, err error) {
	cpuBefore, commandsBefore, err := used(ctx, pid, server)
	for i := 0; i < b.scrapes && err == nil; i++ {
		err = f()
	}
	if err != nil {
		return 0, 0, err
	}
	cpuAfter, commandsAfter, err := used(ctx, pid, server)
	return (cpuAfter - cpuBefore) / time.Duration(b.scrapes), float64(commandsAfter-commandsBefore) / float64(b.scrapes), err
}

// used returns the CPU time of a process and Redis so far, and the number of commands.
func used(ctx context.Context, pid int, server *rig.Redis) (cpu time.Duration, commands int64, err error) {
	process, errProcess := rig.CPU(pid)
	redis, errRedis := server.CPU(ctx)
	_, err = fmt.Sscan(server.Info(ctx, "stats")["total_commands_processed"], &commands)
	return process + redis, commands, errors.Join(errProcess, errRedis, err)
}

// Scrape reads a service's metrics as Prometheus does.
func Scrape(ctx context.Context, addr string) (string, error) {
	return rig.Get(ctx, "http://"+addr+"/metrics")
}

// CountSeries counts the samples of a scrape.
func CountSeries(text string) int {
	n := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") && strings.TrimSpace(line) != "" {
			n++
		}
	}
	return n
}

// underLoad sends webhooks to a receiver that is not scraped, that is scraped once a second, and twenty times, in turn.
func (b *bench) underLoad(ctx context.Context, env *rig.Env, server *rig.Redis, namespace events.Namespace, report *Report) error {
	load, receiver, addr, err := hooks.StartReceiver(ctx, env, server, namespace, 50, uuid.NewString())
	if err != nil {
		return err
	}
	intervals := []struct {
		every  time.Duration
		rounds *[]round
	}{{0, &report.Unwatched}, {time.Second, &report.Once}, {50 * time.Millisecond, &report.Often}}
	for n := range b.rounds {
		env.Progress("round %d of %d", n+1, b.rounds)
		for _, interval := range rig.Rotated(intervals, n) {
			before, err := rig.CPU(receiver.Cmd.Process.Pid)
			if err != nil {
				return err
			}
			watching, stop := context.WithCancel(ctx)
			done := make(chan struct{})
			go func() { defer close(done); scrapeEvery(watching, addr, interval.every) }()
			took, err := load.Send(ctx, addr, b.connections, b.duration)
			stop()
			<-done
			if err != nil {
				return err
			}
			after, err := rig.CPU(receiver.Cmd.Process.Pid)
			if err != nil {
				return err
			}
			entries, err := server.Client.XLen(ctx, namespace.Changes()).Result() // including the warm-up
			if err != nil {
				return err
			}
			*interval.rounds = append(*interval.rounds, round{float64(len(took)) / b.duration.Seconds(), (after - before) / time.Duration(max(entries, 1))})
			if err := server.Client.Unlink(ctx, namespace.Changes()).Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// scrapeEvery scrapes until ctx ends; never if every is 0.
func scrapeEvery(ctx context.Context, addr string, every time.Duration) {
	for every > 0 && app.Sleep(ctx, every) {
		_, _ = Scrape(ctx, addr)
	}
}
