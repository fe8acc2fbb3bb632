package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"lockstep/bench/hot"
	"lockstep/bench/rig"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/stats"
)

// streamBench is what the flags of bench stream say.
type streamBench struct {
	redis       string
	events      int
	subscribers int
	rounds      int
	settle      bool
	slots       int
	peers       []string
	out         term.Output
}

// streamGroup is the consumer group of every contestant; each has a stream of its own.
const streamGroup = "bench"

func NewCommand(std term.Streams) *cobra.Command {
	var b streamBench
	cmd := &cobra.Command{
		Use:   "stream",
		Short: "Measure how many events a subscriber delivers a second",
		Long: "Have one process take a stream of events from Redis with a handler that does nothing: with Lockstep's\n" +
			"subscriber, with one of watermill-redisstream's, with many of these, and with batches of XREADGROUP\n" +
			"and XACK by go-redis, which is what any Go program could reach. Rounds of all contestants alternate;\n" +
			"the figures are medians. It fails if an event is left pending.\n\n" +
			"With --settle each event is to a repository of its own, and is worked on, for no time, under that one's\n" +
			"lease; then its result, the repository's state and its end are settled. Peers are commands that speak\n" +
			"the worker protocol of bench hot, see bench/README.md.\n\n" +
			"Without --redis it starts a private redis-server.",
		Example: "  go run ./bench stream\n  bench stream --events 200000 --rounds 5 --json\n" +
			"  go run ./bench stream --settle --events 5000 --peer 'redsync=bin/peers stock'",
		Args: term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.events < 1 || b.subscribers < 1 || b.rounds < 1 || b.slots < 1 {
				return term.UsageError(errors.New("--events, --subscribers, --rounds and --slots: want at least 1 of each"))
			}
			if len(b.peers) > 0 && !b.settle {
				return term.UsageError(errors.New("--peer is for --settle alone"))
			}
			app.SilenceRedis()
			server, err := rig.OpenRedis(cmd.Context(), b.redis)
			if err != nil {
				return err
			}
			defer server.Close()
			run := b.Run
			if b.settle {
				run = b.runSettled
			}
			report, err := run(cmd.Context(), std, server)
			if err != nil {
				return err
			}
			return report.Print(std.Stdout, b.out)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&b.redis, "redis", "", "`URL` of the Redis to measure on (default: a private redis-server)")
	flags.IntVar(&b.events, "events", 100_000, "how many events each contestant takes in a round")
	flags.IntVar(&b.subscribers, "subscribers", 64, "how many subscribers \"many\" are")
	flags.IntVar(&b.rounds, "rounds", 3, "how many rounds")
	flags.BoolVar(&b.settle, "settle", false, "measure events that are worked on under a lease and settled with a result")
	flags.IntVar(&b.slots, "slots", 4*runtime.NumCPU(), "how many events are worked on at once, with --settle")
	flags.StringArrayVar(&b.peers, "peer", nil, "another contestant, as `NAME=COMMAND …`, with --settle; may be repeated")
	b.out.Add(cmd)
	return cmd
}

type StreamReport struct {
	Machine     rig.Machine `json:"machine"`
	Events      int         `json:"events"`
	Subscribers int         `json:"subscribers,omitempty"`
	Slots       int         `json:"slots,omitempty"` // with a lease and a result for each event
	Rounds      int         `json:"rounds"`
	Rows        []streamRow `json:"rows"`
}

// streamRow is one contestant's figures; the first row is Lockstep's.
type streamRow struct {
	Name      string  `json:"name"`
	PerSecond float64 `json:"events_per_second"`
	Ratio     float64 `json:"lockstep_ratio"` // how many times as many Lockstep delivers; median of the rounds' ratios
}

// taker takes all n events of a stream from its group, and returns when Redis knows that they are done.
type taker func(ctx context.Context, server *rig.Redis, topic string, n int) error

func (b *streamBench) Run(ctx context.Context, std term.Streams, server *rig.Redis) (StreamReport, error) {
	report := StreamReport{Machine: server.Machine(), Events: b.events, Subscribers: b.subscribers, Rounds: b.rounds}
	contestants := []struct {
		name string
		take taker
	}{
		{"lockstep", takeWithLockstep},
		{"one stock subscriber", func(ctx context.Context, s *rig.Redis, topic string, n int) error {
			return takeWithStock(ctx, s, topic, n, 1)
		}},
		{fmt.Sprintf("%d stock subscribers", b.subscribers), func(ctx context.Context, s *rig.Redis, topic string, n int) error {
			return takeWithStock(ctx, s, topic, n, b.subscribers)
		}},
		{"go-redis, batches", takeWithBatches},
	}
	names := make([]string, len(contestants))
	for i, c := range contestants {
		names[i] = c.name
	}
	var err error
	report.Rows, err = b.alternate(std, names, func(_, i int) (float64, error) { return b.measure(ctx, server, contestants[i].take) })
	return report, err
}

// runSettled measures whole workers: lease, result and settlement for each event.
func (b *streamBench) runSettled(ctx context.Context, std term.Streams, server *rig.Redis) (StreamReport, error) {
	report := StreamReport{Machine: server.Machine(), Events: b.events, Slots: b.slots, Rounds: b.rounds}
	load := &hot.Bench{Processes: 1, Slots: b.slots, Rounds: b.rounds, Peers: b.peers, Limit: 5 * time.Minute}
	contestants, err := load.Contestants()
	if err != nil {
		return report, err
	}
	names := make([]string, len(contestants))
	for i, c := range contestants {
		names[i] = c.Name
	}
	tasks := make([]hot.Task, b.events)
	for i := range tasks {
		tasks[i] = hot.Task{Event: i, Repo: fmt.Sprintf("bench/repo-%d", i)}
	}
	prefix := "lockstep-bench:{" + uuid.NewString() + "}:"
	report.Rows, err = b.alternate(std, names, func(round, i int) (float64, error) {
		run := hot.Run{Bench: load, Who: contestants[i], Tasks: tasks, Server: server, Prefix: fmt.Sprintf("%s%d:%d:", prefix, round, i)}
		figures, _, err := run.Play(ctx, std)
		if err == nil && figures.Lost+figures.Doubled+figures.Overlaps > 0 {
			err = fmt.Errorf("%d events lost, %d done twice, %d two at once", figures.Lost, figures.Doubled, figures.Overlaps)
		}
		return float64(b.events) / figures.AllDone.Seconds(), err
	})
	return report, err
}

// alternate measures all contestants in turn, several times over, and compares them with the first.
func (b *streamBench) alternate(std term.Streams, names []string, measure func(round, i int) (float64, error)) ([]streamRow, error) {
	rates, ratios := make([][]float64, len(names)), make([][]float64, len(names))
	for round := range b.rounds {
		for i, name := range names {
			fmt.Fprintf(std.Stderr, "round %d of %d: %s\n", round+1, b.rounds, name)
			rate, err := measure(round, i)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			rates[i] = append(rates[i], rate)
			ratios[i] = append(ratios[i], rates[0][round]/rate)
		}
	}
	rows := make([]streamRow, len(names))
	for i, name := range names {
		rows[i] = streamRow{name, stats.Median(rates[i]), stats.Median(ratios[i])}
	}
	return rows, nil
}

// measure has a contestant take a stream of its own, and returns its events a second.
func (b *streamBench) measure(ctx context.Context, server *rig.Redis, take taker) (float64, error) {
	id := uuid.NewString()
	prefix := "lockstep-bench:{" + id + "}:"
	topic := prefix + "changes"
	defer server.Client.Unlink(context.WithoutCancel(ctx), topic, stream.DueKey(prefix, topic, streamGroup))
	if err := fillStream(ctx, server.Client, topic, b.events); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := take(ctx, server, topic, b.events); err != nil {
		return 0, err
	}
	took := time.Since(began)
	left, err := server.Client.XPending(ctx, topic, streamGroup).Result()
	if err != nil {
		return 0, err
	}
	if left.Count > 0 {
		return 0, fmt.Errorf("%d of %d events are left pending", left.Count, b.events)
	}
	return float64(b.events) / took.Seconds(), nil
}

// fillStream adds n events of a change's size to a stream, and makes the group.
func fillStream(ctx context.Context, client redis.UniversalClient, topic string, n int) error {
	payload := make([]byte, 300)
	for i := range payload {
		payload[i] = 'x'
	}
	for n > 0 {
		batch := min(n, 1000)
		pipe := client.Pipeline()
		for range batch {
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []any{redisstream.UUIDHeaderKey, uuid.NewString(), "metadata", "", "payload", payload}})
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		n -= batch
	}
	return client.XGroupCreate(ctx, topic, streamGroup, "0").Err()
}

func takeWithLockstep(ctx context.Context, server *rig.Redis, topic string, n int) error {
	client := server.Open()
	defer client.Close()
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Redis: client, Reader: server.Open(), Prefix: topic[:len(topic)-len("changes")], Group: streamGroup, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	return takeAll(ctx, subscriber, topic, n)
}

// takeWithStock runs so many stock subscribers, each on a connection of its own.
func takeWithStock(ctx context.Context, server *rig.Redis, topic string, n, subscribers int) error {
	g, ctx := errgroup.WithContext(ctx)
	messages := make(chan struct{}, n)
	enough := make(chan struct{})
	g.Go(func() error {
		defer close(enough)
		for range n {
			select {
			case <-messages:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		// One that is closed may drop the acknowledgement that is on its way.
		for left := int64(1); left > 0; {
			pending, err := server.Client.XPending(ctx, topic, streamGroup).Result()
			if err != nil {
				return err
			}
			left = pending.Count
		}
		return nil
	})
	for range subscribers {
		g.Go(func() error {
			client := server.Open()
			defer client.Close()
			subscriber, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
				Client: client, ConsumerGroup: streamGroup, Consumer: uuid.NewString(), BlockTime: 100 * time.Millisecond,
			}, watermill.NopLogger{})
			if err != nil {
				return err
			}
			out, err := subscriber.Subscribe(ctx, topic)
			if err != nil {
				return err
			}
			for {
				select {
				case m := <-out:
					m.Ack()
					messages <- struct{}{}
				case <-enough:
					return subscriber.Close()
				}
			}
		})
	}
	return g.Wait()
}

// takeAll takes n messages from a subscriber with a handler that does nothing.
func takeAll(ctx context.Context, subscriber message.Subscriber, topic string, n int) error {
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
	return subscriber.Close() // with the last acknowledgements
}

func takeWithBatches(ctx context.Context, server *rig.Redis, topic string, n int) error {
	client := server.Open()
	defer client.Close()
	args := &redis.XReadGroupArgs{Group: streamGroup, Consumer: "batches", Streams: []string{topic, ">"}, Count: 128, Block: -1}
	for n > 0 {
		read, err := client.XReadGroup(ctx, args).Result()
		if err != nil {
			return err
		}
		ids := make([]string, 0, len(read[0].Messages))
		for _, m := range read[0].Messages {
			ids = append(ids, m.ID)
		}
		if err := client.XAck(ctx, topic, streamGroup, ids...).Err(); err != nil {
			return err
		}
		n -= len(ids)
	}
	return nil
}

func (r StreamReport) Print(w io.Writer, out term.Output) error {
	if !out.IsTable() {
		return out.Document(w, r)
	}
	what := "events of 300 bytes, a handler that does nothing, one process"
	if r.Slots > 0 {
		what = fmt.Sprintf("events, each to a repository of its own: lease, result, settlement; one process × %d slots", r.Slots)
	}
	fmt.Fprintf(w, "%s\n%d %s; rounds: %d, medians\n\n", r.Machine, r.Events, what, r.Rounds)
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\tevents/s\tlockstep delivers\t")
	for i, row := range r.Rows {
		if i == 0 {
			fmt.Fprintf(tw, "%s\t%.0f\t\t\n", row.Name, row.PerSecond)
			continue
		}
		fmt.Fprintf(tw, "%s\t%.0f\t%.2f times as many\t\n", row.Name, row.PerSecond, row.Ratio)
	}
	return tw.Flush()
}
