// Package hooks measures how many webhooks a second a receiver accepts, and that a storm of webhooks loses none.
package hooks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
	"lockstep/internal/stats"
)

// bench holds the flags.
type bench struct {
	redis                      string
	connections, repos, rounds int
	duration                   time.Duration
	storm                      int
	timeout                    time.Duration // of a storm
	idOnly                     bool
}

// NewCommand returns the command bench hooks.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.Command(std, &cobra.Command{
		Use:   "hooks",
		Short: "Measure webhooks a second, and that a storm of webhooks loses none",
		Long: "Send signed GitHub pushes of 8 KB over kept-alive connections to lockstep serve --roles receiver, and to a\n" +
			"bare handler, which only verifies the same signature and adds the body to a stream. Rounds of both alternate.\n" +
			"Each delivery has an ID of its own, and each repository has one watch. With --id-only the bare handler adds\n" +
			"only the delivery's ID and event, not the body.\n\n" +
			"--storm measures something else instead: it sends deliveries for 50 real repositories, each after a push, to a\n" +
			"receiver and a worker, and kills Redis twice meanwhile. It fails if a delivery that was answered with 202 has\n" +
			"no result, more than one, or one of an earlier commit. Needs git and redis-server.",
		Example: "  go run ./bench hooks\n  go run ./bench hooks --rounds 9 --duration 5s --json\n  go run ./bench hooks --storm 10000",
	}, b.check, func(ctx context.Context, env *rig.Env) (rig.Report, error) {
		if b.storm > 0 {
			return b.runStorm(ctx, env)
		}
		return b.runRounds(ctx, env)
	})
	rig.RedisFlag(cmd, &b.redis)
	flags := cmd.Flags()
	flags.IntVar(&b.connections, "connections", 32, "number of connections; each sends its next delivery when the last is answered")
	flags.IntVar(&b.repos, "repos", 50, "number of repositories")
	flags.DurationVar(&b.duration, "duration", 3*time.Second, "how long to measure each side in each round")
	flags.IntVar(&b.rounds, "rounds", 5, "number of rounds; the figures are medians")
	flags.IntVar(&b.storm, "storm", 0, "`number` of deliveries to send while Redis is killed twice")
	flags.DurationVar(&b.timeout, "timeout", 10*time.Minute, "when to give up a storm")
	flags.BoolVar(&b.idOnly, "id-only", false, "let the bare handler add no body")
	return cmd
}

func (b *bench) check(given func(flag string) bool) error {
	switch {
	case b.connections < 1 || b.repos < 1 || b.rounds < 1:
		return errors.New("--connections, --repos and --rounds: want at least 1 of each")
	case b.duration <= 0 || b.timeout <= 0:
		return errors.New("--duration and --timeout: want positive durations")
	case b.storm < 0 || b.storm > 0 && b.storm < 3*b.repos:
		return fmt.Errorf("--storm is %d; want at least three deliveries for each of %d repositories", b.storm, b.repos)
	case b.storm > 0 && (given("redis") || given("duration") || given("rounds")):
		return errors.New("--storm starts a private redis-server and runs once; omit --redis, --duration and --rounds")
	}
	return nil
}

// side has the figures of one side.
type side struct {
	PerSecond []float64     `json:"per_second"` // in each round
	Median    float64       `json:"median_per_second"`
	P50       time.Duration `json:"p50_ns"` // median of the rounds
	P99       time.Duration `json:"p99_ns"`

	p50s, p99s []time.Duration
}

func (s *side) add(took []time.Duration, during time.Duration) {
	s.PerSecond = append(s.PerSecond, float64(len(took))/during.Seconds())
	p := stats.NewLatency(took)
	s.p50s, s.p99s = append(s.p50s, p.P50), append(s.p99s, p.P99)
	s.Median, s.P50, s.P99 = stats.Median(s.PerSecond), stats.Median(s.p50s), stats.Median(s.p99s)
}

// Report compares a receiver with the bare handler.
type Report struct {
	Machine     rig.Machine   `json:"machine"`
	Connections int           `json:"connections"`
	Repos       int           `json:"repos"`
	Body        int           `json:"body_bytes"`
	Duration    time.Duration `json:"duration_ns"`
	Lockstep    side          `json:"lockstep"`
	Bare        side          `json:"bare"`
	Ratio       float64       `json:"ratio"` // of the medians
}

// runRounds sends deliveries to both sides in turn.
func (b *bench) runRounds(ctx context.Context, env *rig.Env) (rig.Report, error) {
	server, err := env.OpenRedis(ctx, b.redis)
	if err != nil {
		return nil, err
	}
	namespace := rig.NewNamespace()
	env.Cleanup(func() { server.Clear(ctx, string(namespace)) })
	secret := uuid.NewString()
	load, _, addr, err := StartReceiver(ctx, env, server, namespace, b.repos, secret)
	if err != nil {
		return nil, err
	}
	bareAddr, err := startBareHandler(ctx, env, server.URL, namespace, secret, !b.idOnly)
	if err != nil {
		return nil, err
	}

	report := Report{Machine: server.Machine(), Connections: b.connections, Repos: b.repos, Body: load.bodyBytes, Duration: b.duration}
	sides := []struct {
		name, addr string
		*side
	}{{"lockstep", addr, &report.Lockstep}, {"bare handler", bareAddr, &report.Bare}}
	for round := range b.rounds {
		for _, s := range rig.Rotated(sides, round) {
			env.Progress("round %d of %d: %s", round+1, b.rounds, s.name)
			took, err := load.Send(ctx, s.addr, b.connections, b.duration)
			if err != nil {
				return nil, fmt.Errorf("bench %s: %w", s.name, err)
			}
			s.add(took, b.duration)
			if err := server.Client.Unlink(ctx, namespace.Changes()).Err(); err != nil {
				return nil, err
			}
		}
	}
	report.Ratio = report.Lockstep.Median / report.Bare.Median
	return report, nil
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s\n%d connections, bodies of %d bytes, %d repositories, %v; rounds: %d, medians\n\n",
		r.Machine, r.Connections, r.Body, r.Repos, r.Duration, len(r.Lockstep.PerSecond))
	table := rig.NewTable(w)
	fmt.Fprintln(table, "\tdeliveries/s\tp50, ms\tp99, ms\t")
	fmt.Fprintf(table, "lockstep\t%.0f\t%s\t%s\t\n", r.Lockstep.Median, rig.Millis(r.Lockstep.P50), rig.Millis(r.Lockstep.P99))
	fmt.Fprintf(table, "bare handler\t%.0f\t%s\t%s\t\n", r.Bare.Median, rig.Millis(r.Bare.P50), rig.Millis(r.Bare.P99))
	fmt.Fprintf(table, "ratio\t%.2f\t\t\t\n", r.Ratio)
	return table.Flush()
}
