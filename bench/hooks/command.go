package hooks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/stats"
	"lockstep/internal/watch"
)

// hooksBench is what the flags of bench hooks say.
type hooksBench struct {
	redis       string
	connections int
	repos       int
	duration    time.Duration
	rounds      int
	storm       int
	timeout     time.Duration // of a storm
	idOnly      bool
	out         term.Output
}

func NewCommand(std term.Streams) *cobra.Command {
	var b hooksBench
	cmd := &cobra.Command{
		Use:   "hooks",
		Short: "Measure how many webhooks a second are taken, and that none is lost in a storm",
		Long: "Send signed GitHub pushes of 8 KB over kept-alive connections to lockstep serve --roles receiver, and to the\n" +
			"plainest handler there is: it verifies the same signature and adds what was sent to a stream. Rounds of both\n" +
			"alternate. Each delivery has an id of its own, and each repository one watch. With --id-only that handler adds\n" +
			"the delivery's id and event alone, of which nobody could tell what was pushed.\n\n" +
			"--storm measures something else instead: so many deliveries over 50 real repositories, each pushed to\n" +
			"before, to a receiver and a worker, while Redis is killed twice. It fails if a delivery that was answered with\n" +
			"202 has no result, or more than one, or ends before its push. Needs git and redis-server.",
		Example: "  go run ./bench hooks\n  bench hooks --rounds 9 --duration 5s --json\n  bench hooks --storm 10000",
		Args:    term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := b.check(cmd.Flags().Changed); err != nil {
				return term.UsageError(err)
			}
			app.SilenceRedis()
			dir, err := os.MkdirTemp("", "lockstep-bench-hooks-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			if b.storm > 0 {
				return b.runStorm(cmd.Context(), std, dir)
			}
			return b.runRace(cmd.Context(), std, dir)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&b.redis, "redis", "", "`URL` of the Redis to measure on (default: a private redis-server)")
	flags.IntVar(&b.connections, "connections", 32, "how many connections send, each the next when it has its answer")
	flags.IntVar(&b.repos, "repos", 50, "how many repositories")
	flags.DurationVar(&b.duration, "duration", 3*time.Second, "how long each side is measured in each round")
	flags.IntVar(&b.rounds, "rounds", 5, "how many rounds; the figures are medians")
	flags.IntVar(&b.storm, "storm", 0, "send so `many` deliveries while Redis is killed twice, and look at what comes of each")
	flags.DurationVar(&b.timeout, "timeout", 10*time.Minute, "when to give up a storm")
	flags.BoolVar(&b.idOnly, "id-only", false, "have the plain handler add no payload")
	b.out.Add(cmd)
	return cmd
}

func (b *hooksBench) check(given func(flag string) bool) error {
	switch {
	case b.connections < 1 || b.repos < 1 || b.rounds < 1:
		return errors.New("--connections, --repos and --rounds: want at least 1 of each")
	case b.duration <= 0 || b.timeout <= 0:
		return errors.New("--duration and --timeout: want positive durations")
	case b.storm < 0 || b.storm > 0 && b.storm < 3*b.repos:
		return fmt.Errorf("--storm is %d: want at least three for each of %d repositories", b.storm, b.repos)
	case b.storm > 0 && (given("redis") || given("duration") || given("rounds")):
		return errors.New("--storm kills a redis-server of its own, and runs once: without --redis, --duration and --rounds")
	}
	return nil
}

// hooksSide is what one side did.
type hooksSide struct {
	PerSecond []float64     `json:"per_second"` // in each round
	Median    float64       `json:"median_per_second"`
	P50       time.Duration `json:"p50_ns"` // of the rounds' the median
	P99       time.Duration `json:"p99_ns"`

	p50s, p99s []time.Duration
}

// hooksReport is the whole of a race.
type hooksReport struct {
	Machine     rig.Machine   `json:"machine"`
	Connections int           `json:"connections"`
	Repos       int           `json:"repos"`
	Body        int           `json:"body_bytes"`
	Duration    time.Duration `json:"duration_ns"`
	Lockstep    hooksSide     `json:"lockstep"`
	Bare        hooksSide     `json:"bare"`
	Ratio       float64       `json:"ratio"` // of the medians
}

// runRace has both sides take deliveries in turn, several times over.
func (b *hooksBench) runRace(ctx context.Context, std term.Streams, dir string) error {
	server, err := rig.OpenRedis(ctx, b.redis)
	if err != nil {
		return err
	}
	defer server.Close()
	// A prefix of its own: nobody who uses this Redis knows it, nor does an earlier run.
	namespace := events.Namespace("lockstep-bench:{" + uuid.NewString() + "}:")
	defer rig.ClearPrefix(context.WithoutCancel(ctx), server, namespace)
	secret := uuid.NewString()
	load, ours, err := StartWatchedReceiver(ctx, std, dir, server, namespace, b.repos, secret)
	if err != nil {
		return err
	}
	defer ours.Kill()
	bare, err := startBareHandler(ctx, std, server.Url, namespace, secret, !b.idOnly)
	if err != nil {
		return err
	}
	defer bare.Kill()

	report := hooksReport{Machine: server.Machine(), Connections: b.connections, Repos: b.repos, Body: load.bodyBytes(), Duration: b.duration}
	sides := []struct {
		name string
		addr string
		side *hooksSide
	}{{"lockstep", ours.Addr, &report.Lockstep}, {"bare handler", bare.Addr, &report.Bare}}
	for round := range b.rounds {
		for i := range sides {
			s := sides[(i+round)%len(sides)]
			fmt.Fprintf(std.Stderr, "round %d of %d: %s\n", round+1, b.rounds, s.name)
			took, err := load.Send(ctx, s.addr, b.connections, b.duration)
			if err != nil {
				return fmt.Errorf("bench %s: %w", s.name, err)
			}
			s.side.Add(took, b.duration)
			// No round meets what another has left behind.
			if err := server.Client.Unlink(ctx, namespace.Changes()).Err(); err != nil {
				return err
			}
		}
	}
	report.Ratio = report.Lockstep.Median / report.Bare.Median
	return report.Print(std.Stdout, b.out)
}

func (s *hooksSide) Add(took []time.Duration, during time.Duration) {
	s.PerSecond = append(s.PerSecond, float64(len(took))/during.Seconds())
	p := stats.NewLatency(took)
	s.p50s, s.p99s = append(s.p50s, p.P50), append(s.p99s, p.P99)
	s.Median, s.P50, s.P99 = stats.Median(s.PerSecond), stats.Median(s.p50s), stats.Median(s.p99s)
}

func (r hooksReport) Print(w io.Writer, out term.Output) error {
	if !out.IsTable() {
		return out.Document(w, r)
	}
	fmt.Fprintf(w, "%s\n%d connections, bodies of %d bytes, %d repositories, %v; rounds: %d, medians\n\n",
		r.Machine, r.Connections, r.Body, r.Repos, r.Duration, len(r.Lockstep.PerSecond))
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\tdeliveries/s\tp50, ms\tp99, ms\t")
	fmt.Fprintf(tw, "lockstep\t%.0f\t%s\t%s\t\n", r.Lockstep.Median, rig.Millis(r.Lockstep.P50), rig.Millis(r.Lockstep.P99))
	fmt.Fprintf(tw, "bare handler\t%.0f\t%s\t%s\t\n", r.Bare.Median, rig.Millis(r.Bare.P50), rig.Millis(r.Bare.P99))
	fmt.Fprintf(tw, "ratio\t%.2f\t\t\t\n", r.Ratio)
	return tw.Flush()
}

// WatchAll has each repository watched once.
func WatchAll(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, urls []string) error {
	watches := make([]watch.Watch, len(urls))
	for i, url := range urls {
		watches[i] = watch.Watch{App: "bench", URL: url}
	}
	_, err := watch.NewRegistry(client, namespace).Put(ctx, watches...)
	return err
}

// WriteSource makes a folder of sources that has one, hub, of GitHub.
func WriteSource(dir, secret string) (hooks string, err error) {
	hooks = filepath.Join(dir, "hooks")
	if err := os.MkdirAll(filepath.Join(hooks, "hub"), 0o700); err != nil {
		return "", err
	}
	for name, content := range map[string]string{"forge": "github", "secret": secret} {
		if err := os.WriteFile(filepath.Join(hooks, "hub", name), []byte(content), 0o600); err != nil {
			return "", err
		}
	}
	return hooks, nil
}
