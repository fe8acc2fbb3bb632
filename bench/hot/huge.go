package hot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
)

// huge is the case of huge entries in the stream.
type huge struct {
	entries, megabytes int
	work, limit        time.Duration
}

func newHugeCommand(std term.Streams) *cobra.Command {
	var c huge
	cmd := newCase(std, &cobra.Command{
		Use:   "huge",
		Short: "What huge entries in the stream cost Redis and a reader",
		Long: "Let one process with a stream subscriber ack huge entries, and measure the longest PING of another client\n" +
			"meanwhile, the memory of the process, and how many entries were charged attempts.",
	}, func() error {
		return atLeastOne("--entries, --megabytes and --limit", int64(c.entries), int64(c.megabytes), int64(c.limit))
	}, c.run)
	flags := cmd.Flags()
	flags.IntVar(&c.entries, "entries", 250, "number of entries")
	flags.IntVar(&c.megabytes, "megabytes", 5, "size of each in `MB`")
	flags.DurationVar(&c.work, "work", 10*time.Millisecond, "pause before each ack")
	flags.DurationVar(&c.limit, "limit", 2*time.Minute, "when to give up")
	return cmd
}

func (c *huge) run(ctx context.Context, env *rig.Env, server *rig.Redis) (rig.Report, error) {
	namespace := rig.NewNamespace()
	env.Progress("queueing %d entries of %d MB", c.entries, c.megabytes)
	if err := c.queue(ctx, server, namespace); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	workers, _, err := env.StartWorkers(ctx, 1, rig.Contestant{Argv: []string{self, readerCommand}},
		"--redis", server.URL, "--prefix", string(namespace), "--work", c.work.String())
	defer workers.Kill()
	if err != nil {
		return nil, err
	}
	env.Progress("reading")
	pings, err := watchPings(ctx, server)
	if err != nil {
		return nil, err
	}
	defer pings.stop()
	charged := watchAttempts(ctx, server, namespace)
	defer charged.stop()
	began := time.Now()
	acked, again, peak, err := c.await(ctx, server, workers, namespace)
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	entries, most := charged.end()
	report := newCaseReport("huge", "%d entries of %d MB, one reader with %v of work", c.entries, c.megabytes, c.work)
	report.addWithin(100, "longest PING, ms", pings.end().Seconds()*1000)
	report.addWithin(300, "peak memory of the reader, MB", float64(peak>>20))
	report.addWithin(0, "entries charged attempts", float64(entries))
	report.addWithin(0, "most attempts charged to one", float64(most))
	report.addWithin(0, "entries never acked", float64(c.entries-acked))
	report.addWithin(0, "entries acked twice", float64(again))
	report.add("all acked after, s", took.Seconds())
	return report, nil
}

func (c *huge) queue(ctx context.Context, server *rig.Redis, namespace events.Namespace) error {
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Redis: server.Client})
	if err != nil {
		return err
	}
	payload := []byte(strings.Repeat("x", c.megabytes<<20))
	for i := range c.entries {
		msg := message.NewMessage(fmt.Sprintf("huge-%d", i), payload)
		msg.SetContext(ctx)
		if err := publisher.Publish(namespace.Changes(), msg); err != nil {
			return err
		}
	}
	return nil
}

// await starts the reader and waits until it has acked all entries, or the limit has passed. It returns how many the reader
// has acked, how many of these twice, and the reader's peak memory in bytes.
func (c *huge) await(ctx context.Context, server *rig.Redis, workers rig.Workers, namespace events.Namespace) (acked, again int, peak int64, err error) {
	var mu sync.Mutex
	times := map[string]int{}
	if _, err := workers.Go(ctx); err != nil {
		return 0, 0, 0, err
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		_ = workers.EachLine(ctx, func(_ int, uuid string) error { // fails, because the process is killed
			mu.Lock()
			defer mu.Unlock()
			times[uuid]++
			return nil
		})
	})
	process := workers[0].Cmd.Process
	for deadline := time.Now().Add(c.limit); ; {
		mu.Lock()
		acked = len(times)
		mu.Unlock()
		pending := int64(1)
		if acked == c.entries {
			pending, err = pendingCount(ctx, server.Client, namespace)
		}
		if err != nil || pending == 0 || time.Now().After(deadline) || !app.Sleep(ctx, 10*time.Millisecond) {
			break
		}
	}
	peak, errPeak := rig.Memory(process.Pid, "VmHWM")
	_ = process.Kill()
	reading.Wait()
	for _, n := range times {
		if n > 1 {
			again++
		}
	}
	return acked, again, peak, errors.Join(err, errPeak, context.Cause(ctx))
}

// pings measures the latency of PING, over a separate connection.
type pings struct {
	stop    context.CancelFunc
	done    chan struct{}
	longest time.Duration
}

// watchPings sends a PING every 10 ms, over one connection.
func watchPings(ctx context.Context, server *rig.Redis) (*pings, error) {
	options, err := redis.ParseURL(server.URL)
	if err != nil {
		return nil, err
	}
	options.MaxRetries, options.PoolSize, options.ReadTimeout = -1, 1, time.Hour // measures how long Redis takes, however long
	client := redis.NewClient(options)
	ctx, stop := context.WithCancel(ctx)
	p := &pings{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		defer client.Close()
		for app.Sleep(ctx, 10*time.Millisecond) {
			began := time.Now()
			_ = client.Ping(ctx).Err() // the time counts, whatever the answer
			p.longest = max(p.longest, time.Since(began))
		}
	}()
	return p, nil
}

// end stops the PINGs and returns the longest.
func (p *pings) end() time.Duration {
	p.stop()
	<-p.done
	return p.longest
}
