package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/bench/hooks"
	"lockstep/bench/idle"
	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/stats"
	"lockstep/internal/telemetry"
)

// scrapeBench is what the flags of bench scrape say.
type scrapeBench struct {
	redis       string
	repos       int
	scrapes     int
	connections int
	duration    time.Duration
	rounds      int
	out         term.Output
}

func NewCommand(std term.Streams) *cobra.Command {
	var b scrapeBench
	cmd := &cobra.Command{
		Use:   "scrape",
		Short: "Measure what it costs to be watched by Prometheus",
		Long: "Have Redis know many repositories, and a service with all roles sync some; then scrape its metrics again and\n" +
			"again, and look at the processor time that it takes, at what it asks Redis, and at how many series there are.\n" +
			"Then send webhooks to a receiver, and see how many fewer it takes while it is scraped once a second, and twenty\n" +
			"times. Without --redis it starts a private redis-server.",
		Example: "  go run ./bench scrape\n  bench scrape --repos 1000 --scrapes 100 --rounds 1 -o json",
		Args:    term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.repos < 0 || b.scrapes < 1 || b.connections < 1 || b.rounds < 1 || b.duration < time.Second {
				return term.UsageError(errors.New("want at least one of each, and 1s"))
			}
			app.SilenceRedis()
			dir, err := os.MkdirTemp("", "lockstep-bench-scrape-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			report, err := b.Run(cmd.Context(), std, dir)
			if err != nil {
				return err
			}
			return report.Print(std.Stdout, b.out)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&b.redis, "redis", "", "`URL` of the Redis to measure on (default: a private redis-server)")
	flags.IntVar(&b.repos, "repos", 100_000, "how many repositories Redis knows")
	flags.IntVar(&b.scrapes, "scrapes", 500, "how many scrapes are measured")
	flags.IntVar(&b.connections, "connections", 8, "how many connections send webhooks")
	flags.DurationVar(&b.duration, "duration", 3*time.Second, "how long webhooks are sent in each round")
	flags.IntVar(&b.rounds, "rounds", 5, "how many rounds; the figures are medians")
	b.out.Add(cmd)
	return cmd
}

// ScrapeReport is what being watched costs.
type ScrapeReport struct {
	Machine  rig.Machine   `json:"machine"`
	Repos    int           `json:"repos"`
	Series   int           `json:"series"`
	Bytes    int           `json:"bytes"`
	Took     time.Duration `json:"took_ns"`     // by one scrape, the median
	CPU      time.Duration `json:"cpu_ns"`      // of service and Redis, by one
	Commands float64       `json:"commands"`    // that one asks of Redis
	Fresh    time.Duration `json:"fresh_ns"`    // of both, by one that finds the streams' figures 5 s old, beyond that
	Asks     float64       `json:"fresh_asks"`  // commands, likewise
	Every15s float64       `json:"core_at_15s"` // share of a core, of service and Redis
	Every1s  float64       `json:"core_at_1s"`

	Unwatched []scrapedRound `json:"unwatched"` // in each round
	Once      []scrapedRound `json:"at_1s"`     // likewise, while scraped once a second
	Often     []scrapedRound `json:"at_50ms"`
}

// scrapedRound is webhooks sent to a receiver for a while.
type scrapedRound struct {
	PerSecond float64       `json:"per_second"`
	Each      time.Duration `json:"each_ns"` // the receiver's processor time for one, that for scrapes included
}

// against is what rounds came to, each against the one unwatched: webhooks a second, and processor time for each.
func against(rounds, unwatched []scrapedRound) (perSecond, each float64) {
	var rates, costs []float64
	for i, r := range rounds {
		rates = append(rates, r.PerSecond/unwatched[i].PerSecond)
		costs = append(costs, float64(r.Each)/float64(unwatched[i].Each))
	}
	return stats.Median(rates), stats.Median(costs)
}

func (r ScrapeReport) Print(w io.Writer, out term.Output) error {
	if !out.IsTable() {
		return out.Document(w, r)
	}
	onceRate, onceCost := against(r.Once, r.Unwatched)
	oftenRate, oftenCost := against(r.Often, r.Unwatched)
	_, err := fmt.Fprintf(w, "%s; %d repositories known\n"+
		"a scrape: %d series, %d kB, %s ms; %.2f ms of processor time, Redis' included, and %.1f commands; %.2f ms and %.1f more every 5 s\n"+
		"every 15 s that is %.4f %% of a core, every second %.3f %%\n"+
		"webhooks, medians of %d rounds, against nobody watching:\n"+
		"  scraped once a second: %.3f of them, %.3f of the processor time for each\n"+
		"  scraped 20 times:      %.3f of them, %.3f of the processor time for each\n",
		r.Machine, r.Repos, r.Series, r.Bytes/1000, rig.Millis(r.Took), r.CPU.Seconds()*1000, r.Commands, r.Fresh.Seconds()*1000, r.Asks,
		100*r.Every15s, 100*r.Every1s, len(r.Unwatched), onceRate, onceCost, oftenRate, oftenCost)
	return err
}

func (b *scrapeBench) Run(ctx context.Context, std term.Streams, dir string) (ScrapeReport, error) {
	server, err := rig.OpenRedis(ctx, b.redis)
	if err != nil {
		return ScrapeReport{}, err
	}
	defer server.Close()
	// A prefix of its own: nobody who uses this Redis knows it, nor does an earlier run.
	namespace := events.Namespace("lockstep-bench:{" + uuid.NewString() + "}:")
	defer rig.ClearPrefix(context.WithoutCancel(ctx), server, namespace)
	report := ScrapeReport{Machine: server.Machine(), Repos: b.repos}
	fmt.Fprintf(std.Stderr, "having Redis know %d repositories\n", b.repos)
	if err := KnowRepos(ctx, server.Client, namespace, b.repos); err != nil {
		return report, err
	}
	if err := b.alone(ctx, std, dir, server, namespace, &report); err != nil {
		return report, err
	}
	return report, b.underLoad(ctx, std, dir, server, namespace, &report)
}

// KnowRepos writes the state of so many repositories, as syncs leave it.
func KnowRepos(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, n int) error {
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

// alone scrapes a service that plays all roles, has synced some repositories and rests.
func (b *scrapeBench) alone(ctx context.Context, std term.Streams, dir string, server *rig.Redis, namespace events.Namespace, report *ScrapeReport) error {
	idle := idle.Bench{Repos: 50}
	git, err := idle.ServeRepos(ctx, filepath.Join(dir, "git"))
	if err != nil {
		return err
	}
	defer git.Close()
	service, err := rig.StartLockstep(ctx, std, dir, "service", "serve", "--listen", "127.0.0.1:0", "--redis", server.Url, "--prefix", string(namespace),
		"--root", filepath.Join(dir, "root"), "--log-level", "info")
	if err != nil {
		return err
	}
	defer service.Kill()
	if err := idle.SyncIn(ctx, server, namespace, git); err != nil {
		return err
	}
	fmt.Fprintf(std.Stderr, "scraping %d times\n", b.scrapes)
	if _, err := Scrape(ctx, service.Addr); err != nil { // the first makes what the others find
		return err
	}
	before, err := costs(ctx, service.Cmd.Process.Pid, server)
	if err != nil {
		return err
	}
	took := make([]time.Duration, b.scrapes)
	for i := range took {
		began := time.Now()
		text, err := Scrape(ctx, service.Addr)
		if err != nil {
			return err
		}
		took[i], report.Series, report.Bytes = time.Since(began), SeriesIn(text), len(text)
	}
	after, err := costs(ctx, service.Cmd.Process.Pid, server)
	if err != nil {
		return err
	}
	report.Took = stats.NewLatency(took).P50
	report.CPU, report.Commands = after.since(before, b.scrapes)
	if report.Fresh, report.Asks, err = b.fresh(ctx, server, namespace); err != nil {
		return err
	}
	report.Every15s = (report.CPU + report.Fresh).Seconds() / 15
	report.Every1s = report.CPU.Seconds() + report.Fresh.Seconds()/5
	return nil
}

// fresh has this process read the streams' figures, as a service does for a scrape that finds them old.
func (b *scrapeBench) fresh(ctx context.Context, server *rig.Redis, namespace events.Namespace) (cpu time.Duration, commands float64, err error) {
	before, err := costs(ctx, os.Getpid(), server)
	if err != nil {
		return 0, 0, err
	}
	for range b.scrapes {
		if _, err := telemetry.NewStreams(server.Client, string(namespace), namespace.Changes(), namespace.Results()).Read(ctx); err != nil {
			return 0, 0, err
		}
	}
	after, err := costs(ctx, os.Getpid(), server)
	if err != nil {
		return 0, 0, err
	}
	cpu, commands = after.since(before, b.scrapes)
	return cpu, commands, nil
}

// cost is what a process and Redis have taken so far.
type cost struct {
	cpu      time.Duration
	commands int64
}

func (c cost) since(before cost, times int) (cpu time.Duration, commands float64) {
	return (c.cpu - before.cpu) / time.Duration(times), float64(c.commands-before.commands) / float64(times)
}

func costs(ctx context.Context, pid int, server *rig.Redis) (c cost, err error) {
	ours, err := rig.ProcessorTime(pid)
	if err != nil {
		return c, err
	}
	theirs, err := server.Cpu(ctx)
	if err != nil {
		return c, err
	}
	c.cpu = ours + theirs
	_, err = fmt.Sscan(rig.RedisInfo(ctx, server.Client, "stats")["total_commands_processed"], &c.commands)
	return c, err
}

// Scrape reads a service's metrics as Prometheus does.
func Scrape(ctx context.Context, addr string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("scrape: %s: %.200s", resp.Status, text)
	}
	return string(text), err
}

// SeriesIn counts the samples of a scrape.
func SeriesIn(text string) int {
	n := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") && strings.TrimSpace(line) != "" {
			n++
		}
	}
	return n
}

// underLoad sends webhooks to a receiver that nobody watches, one that is scraped once a second, and one that is
// scraped twenty times, in turn.
func (b *scrapeBench) underLoad(ctx context.Context, std term.Streams, dir string, server *rig.Redis, namespace events.Namespace, report *ScrapeReport) error {
	load, receiver, err := hooks.StartWatchedReceiver(ctx, std, dir, server, namespace, 50, uuid.NewString())
	if err != nil {
		return err
	}
	defer receiver.Kill()
	for round := range b.rounds {
		fmt.Fprintf(std.Stderr, "round %d of %d\n", round+1, b.rounds)
		rounds := map[time.Duration]scrapedRound{}
		intervals := []time.Duration{0, time.Second, 50 * time.Millisecond}
		for i := range intervals {
			every := intervals[(i+round)%len(intervals)]
			before, err := rig.ProcessorTime(receiver.Cmd.Process.Pid)
			if err != nil {
				return err
			}
			watching, stop := context.WithCancel(ctx)
			done := make(chan struct{})
			go func() { defer close(done); scrapeEvery(watching, receiver.Addr, every) }()
			took, err := load.Send(ctx, receiver.Addr, b.connections, b.duration)
			stop()
			<-done
			if err != nil {
				return err
			}
			after, err := rig.ProcessorTime(receiver.Cmd.Process.Pid)
			if err != nil {
				return err
			}
			entries, err := server.Client.XLen(ctx, namespace.Changes()).Result() // those of the warm-up, too
			if err != nil {
				return err
			}
			rounds[every] = scrapedRound{float64(len(took)) / b.duration.Seconds(), (after - before) / time.Duration(max(entries, 1))}
			// No round meets what another has left behind.
			if err := server.Client.Unlink(ctx, namespace.Changes()).Err(); err != nil {
				return err
			}
		}
		report.Unwatched = append(report.Unwatched, rounds[0])
		report.Once = append(report.Once, rounds[time.Second])
		report.Often = append(report.Often, rounds[50*time.Millisecond])
	}
	return nil
}

// scrapeEvery scrapes until ctx is done; never, if every is 0.
func scrapeEvery(ctx context.Context, addr string, every time.Duration) {
	for every > 0 && app.Sleep(ctx, every) {
		_, _ = Scrape(ctx, addr) // what counts is what it costs
	}
}
