// Package stream measures how many events a second a subscriber delivers.
package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/bench/hot"
	"lockstep/bench/rig"
	"lockstep/events/stream"
	"lockstep/internal/stats"
	"lockstep/internal/term"
)

// bench holds the flags.
type bench struct {
	events, rounds, slots int
	settle, served        bool
	peers                 []string
	publishers            []int
	changes               int
	duration              time.Duration // with --publishers
	against               string
}

// group is the consumer group of every contestant. Contestants do not share streams.
const group = "bench"

// payloadBytes is about the size of a change.
const payloadBytes = 300

// NewCommand returns the command bench stream.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.Command(std, &cobra.Command{
		Use:   "stream",
		Short: "Measure how many events a second a subscriber delivers",
		Long: "Let one process read a stream of events from Redis with a handler that does nothing: with Lockstep's\n" +
			"subscriber, and with batches of XREADGROUP and XACK by go-redis, the best that a Go program could do.\n" +
			"Rounds alternate; the figures are medians. It fails if an event is left pending.\n\n" +
			"With --settle each event is for a repository of its own, and is worked on, for no time, under that\n" +
			"repository's lease; then its result and the repository's state are written, and it is acknowledged.\n" +
			"Peers are commands that speak the worker protocol of bench hot, see bench/README.md.\n\n" +
			"With --serve and --against, processes of lockstep serve settle changes of repositories with nothing new instead.\n" +
			"With --publishers, publishers add events to a Redis with appendfsync always and to one with everysec.",
		Example: "  bin/bench stream\n  bin/bench stream --events 200000 --rounds 5 --json\n" +
			"  bin/bench stream --settle --events 5000 --peer 'BullMQ=node bench/peers/node/bullmq.mjs'\n" +
			"  bin/bench stream --against bin/lockstep-old\n  bin/bench stream --publishers 1,16,256",
	}, b.check, b.run)
	rig.AgainstFlag(cmd, &b.against)
	flags := cmd.Flags()
	flags.BoolVar(&b.served, "serve", false, "measure changes a second of lockstep serve")
	flags.IntVar(&b.changes, "changes", 400, "number of changes, with --serve and --against")
	flags.IntSliceVar(&b.publishers, "publishers", nil, "`numbers` of publishers; measure what they add")
	flags.DurationVar(&b.duration, "duration", 2*time.Second, "how long publishers add events in a round")
	flags.IntVar(&b.events, "events", 100_000, "number of events for each contestant in a round")
	flags.IntVar(&b.rounds, "rounds", 3, "number of rounds")
	flags.BoolVar(&b.settle, "settle", false, "measure events that are worked on under a lease and settled with a result")
	flags.IntVar(&b.slots, "slots", 4*runtime.NumCPU(), "number of events to work on concurrently, with --settle")
	flags.StringArrayVar(&b.peers, "peer", nil, "another contestant, as `NAME=COMMAND …`, with --settle; may be repeated")
	return cmd
}

func (b *bench) check(func(string) bool) error {
	if b.events < 1 || b.rounds < 1 || b.slots < 1 {
		return errors.New("--events, --rounds and --slots: want at least 1 of each")
	}
	if len(b.peers) > 0 && !b.settle {
		return errors.New("--peer requires --settle")
	}
	if b.changes < 1 || b.duration <= 0 || slices.ContainsFunc(b.publishers, func(n int) bool { return n < 1 || n > 1000 }) {
		return errors.New("--changes and --duration: want positive values; --publishers: want numbers from 1 to 1,000")
	}
	modes := 0
	for _, mode := range []bool{b.settle, b.served || b.against != "", len(b.publishers) > 0} {
		if mode {
			modes++
		}
	}
	if modes > 1 {
		return errors.New("--settle, --serve or --against, and --publishers exclude each other")
	}
	return nil
}

func (b *bench) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	switch {
	case b.served || b.against != "":
		return b.runServed(ctx, env)
	case len(b.publishers) > 0:
		return b.runPublishers(ctx, env)
	}
	server, err := env.OpenRedis(ctx)
	if err != nil {
		return nil, err
	}
	if b.settle {
		return b.runSettled(ctx, env, server)
	}
	return b.runSubscribers(ctx, env, server)
}

// Report compares the contestants.
type Report struct {
	Setup string `json:"setup"`
	Rows  []row  `json:"rows"`
}

// row has the medians of one contestant, and how its rate compares with that of the first one.
type row struct {
	Name   string               `json:"name"`
	Median sample               `json:"median"`
	Ratio  stats.Range[float64] `json:"first_to_it"` // of the first one's rate to this one's, in the same round

	rounds []sample
}

// sample has the figures of a round. Those that a benchmark does not measure are 0.
type sample struct {
	PerSecond float64       `json:"events_per_second"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	CPU       time.Duration `json:"cpu_ns"` // of the worker and Redis, for an event
}

// taker consumes n events of a stream, and returns when all are acknowledged.
type taker func(ctx context.Context, server *rig.Redis, topic string, n int) error

func (b *bench) runSubscribers(ctx context.Context, env *rig.Env, server *rig.Redis) (report Report, err error) {
	names, takers := []string{"lockstep", "go-redis, batches"}, []taker{takeWithLockstep, takeWithBatches}
	report.Setup = fmt.Sprintf("%d events of %d bytes, a handler that does nothing, one process", b.events, payloadBytes)
	report.Rows, err = b.compare(env, names, func(_, i int) (sample, error) { return b.measure(ctx, server, takers[i]) })
	return report, err
}

// runSettled measures whole workers: a lease, a result and a settlement for each event.
func (b *bench) runSettled(ctx context.Context, env *rig.Env, server *rig.Redis) (Report, error) {
	report := Report{Setup: fmt.Sprintf("%d events, each for a repository of its own: lease, result, settlement; one process × %d slots", b.events, b.slots)}
	contestants, err := hot.Contestants(b.peers)
	if err != nil {
		return report, err
	}
	load := hot.Load{Processes: 1, Slots: b.slots, Limit: 5 * time.Minute}
	tasks := make([]hot.Task, b.events)
	for i := range tasks {
		tasks[i] = hot.Task{Event: i, Repo: fmt.Sprintf("bench/repo-%d", i)}
	}
	prefix := rig.NewNamespace()
	versions := make([]string, len(contestants))
	report.Rows, err = b.compare(env, rig.Names(contestants), func(round, i int) (sample, error) {
		figures, version, err := load.Play(ctx, env, server, contestants[i], tasks, fmt.Sprintf("%s%d:%d:", prefix, round, i))
		versions[i] = version
		if err == nil && figures.Lost+figures.Doubled+figures.Overlaps > 0 {
			err = fmt.Errorf("%d events lost, %d done twice, %d two at once", figures.Lost, figures.Doubled, figures.Overlaps)
		}
		return sample{PerSecond: float64(b.events) / figures.AllDone.Seconds()}, err
	})
	for i := range report.Rows {
		report.Rows[i].Name = strings.TrimSpace(report.Rows[i].Name + " " + versions[i])
	}
	return report, err
}

// compare measures all contestants in turn, and compares them with the first.
func (b *bench) compare(env *rig.Env, names []string, measure func(round, i int) (sample, error)) ([]row, error) {
	rows := make([]row, len(names))
	err := env.Alternate(b.rounds, names, func(round, i int) error {
		measured, err := measure(round, i)
		rows[i].rounds = append(rows[i].rounds, measured)
		return err
	})
	if err != nil {
		return rows, err
	}
	for i := range rows {
		r := &rows[i]
		r.Name = names[i]
		duration := func(of func(sample) time.Duration) time.Duration { return stats.MedianOf(r.rounds, of) }
		r.Median = sample{
			PerSecond: stats.MedianOf(r.rounds, func(s sample) float64 { return s.PerSecond }),
			P50:       duration(func(s sample) time.Duration { return s.P50 }),
			P99:       duration(func(s sample) time.Duration { return s.P99 }),
			CPU:       duration(func(s sample) time.Duration { return s.CPU }),
		}
		ratios := make([]float64, b.rounds)
		for round := range ratios {
			ratios[round] = rows[0].rounds[round].PerSecond / r.rounds[round].PerSecond
		}
		r.Ratio = stats.RangeOf(ratios, func(ratio float64) float64 { return ratio })
	}
	return rows, nil
}

// measure lets a contestant consume a new stream, and returns its events a second.
func (b *bench) measure(ctx context.Context, server *rig.Redis, take taker) (sample, error) {
	prefix := string(rig.NewNamespace())
	topic := prefix + "changes"
	defer server.Client.Unlink(context.WithoutCancel(ctx), topic, stream.DueKey(prefix, topic, group))
	if err := fillStream(ctx, server.Client, topic, b.events); err != nil {
		return sample{}, err
	}
	began := time.Now()
	if err := take(ctx, server, topic, b.events); err != nil {
		return sample{}, err
	}
	took := time.Since(began)
	pending, err := server.Client.XPending(ctx, topic, group).Result()
	if err == nil && pending.Count > 0 {
		err = fmt.Errorf("%d of %d events left pending", pending.Count, b.events)
	}
	return sample{PerSecond: float64(b.events) / took.Seconds()}, err
}

// fillStream adds n events of a change's size to a stream, and makes the group.
func fillStream(ctx context.Context, client redis.UniversalClient, topic string, n int) error {
	payload := strings.Repeat("x", payloadBytes)
	for n > 0 {
		batch := min(n, 1000)
		pipe := client.Pipeline()
		for range batch {
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []any{"_watermill_message_uuid", uuid.NewString(), "metadata", "", "payload", payload}})
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		n -= batch
	}
	return client.XGroupCreate(ctx, topic, group, "0").Err()
}

func takeWithLockstep(ctx context.Context, server *rig.Redis, topic string, n int) error {
	client := server.Open()
	defer client.Close()
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Client: client, Reader: server.Open(), Prefix: topic[:len(topic)-len("changes")], ConsumerGroup: group, Log: slog.New(slog.DiscardHandler),
	}, nil)
	if err != nil {
		return err
	}
	messages, err := subscriber.Subscribe(ctx, topic)
	if err != nil {
		return errors.Join(err, subscriber.Close())
	}
	for range n {
		select {
		case m := <-messages:
			m.Ack()
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), subscriber.Close())
		}
	}
	return subscriber.Close() // sends the last acknowledgements
}

func takeWithBatches(ctx context.Context, server *rig.Redis, topic string, n int) error {
	client := server.Open()
	defer client.Close()
	args := &redis.XReadGroupArgs{Group: group, Consumer: "batches", Streams: []string{topic, ">"}, Count: 128, Block: -1}
	for n > 0 {
		read, err := client.XReadGroup(ctx, args).Result()
		if err != nil {
			return err
		}
		ids := make([]string, 0, len(read[0].Messages))
		for _, m := range read[0].Messages {
			ids = append(ids, m.ID)
		}
		if err := client.XAck(ctx, topic, group, ids...).Err(); err != nil {
			return err
		}
		n -= len(ids)
	}
	return nil
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s; rounds: %d, medians (lowest–highest)\n\n", r.Setup, len(r.Rows[0].rounds))
	tw := rig.NewTable(w)
	fmt.Fprintln(tw, "\tevents/s\tp50, ms\tp99, ms\tCPU, ms/event\tfirst's rate to it\t")
	for _, row := range r.Rows {
		m := row.Median
		fmt.Fprintf(tw, "%s\t%.0f\t%s\t%s\t%s\t%s\t\n", row.Name, m.PerSecond, rig.Millis(m.P50), rig.Millis(m.P99), rig.Millis(m.CPU), rig.RatioRange(row.Ratio))
	}
	return tw.Flush()
}
