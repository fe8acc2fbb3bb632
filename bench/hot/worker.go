package hot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
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
	"lockstep/internal/redisx"
	"lockstep/internal/state"
	"lockstep/locking"
	"lockstep/router"
)

// hotWorker is one process of bench hot. It is put together as lockstep serve is, of the
// same parts with the same defaults, but that a pause stands for Git. It speaks the worker protocol.
type hotWorker struct {
	redis, prefix string
	slots, workMS int
	coalesce      bool
}

func NewWorkerCommand(std term.Streams) *cobra.Command {
	var w hotWorker
	cmd := &cobra.Command{
		Use:       "hot-worker queue|work",
		Short:     "One process of bench hot",
		Hidden:    true,
		ValidArgs: []string{"queue", "work"},
		Args:      term.WrongUse(cobra.MatchAll(term.OneArg, cobra.OnlyValidArgs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			app.SilenceRedis()
			server, errRedis := redisx.Parse(w.redis, "")
			namespace, errPrefix := events.ParseNamespace(w.prefix)
			if err := errors.Join(errRedis, errPrefix); err != nil {
				return term.UsageError(err)
			}
			if args[0] == "queue" {
				return queueHot(cmd.Context(), server, namespace, cmd.InOrStdin())
			}
			return w.Run(cmd.Context(), server, namespace, bufio.NewReader(cmd.InOrStdin()), std.Stdout)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&w.redis, "redis", "", "`URL` of the Redis to use")
	flags.StringVar(&w.prefix, "prefix", "", "`prefix` of all keys")
	flags.IntVar(&w.slots, "slots", 5, "how many events to work on at once")
	flags.BoolVar(&w.coalesce, "coalesce", false, "settle what waits for the same repository along with what was worked on")
	flags.IntVar(&w.workMS, "work-ms", 20, "how many `milliseconds` the work on an event takes")
	return cmd
}

// queueHot publishes a change for each line of "<event> <repo>".
func queueHot(ctx context.Context, server redisx.Server, namespace events.Namespace, stdin io.Reader) error {
	client := server.Open()
	defer client.Close()
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Redis: client})
	if err != nil {
		return err
	}
	ref, err := events.ParseRef("main")
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		event, repo, _ := strings.Cut(lines.Text(), " ")
		change, err := events.NewChange(events.Change{ID: event, Source: "/lockstep/bench", URL: "https://example.com/" + repo + ".git", Ref: ref})
		if err != nil {
			return err
		}
		msg, err := stream.ChangeMessage(change)
		if err != nil {
			return err
		}
		msg.SetContext(ctx)
		if err := publisher.Publish(namespace.Changes(), msg); err != nil {
			return err
		}
	}
	return lines.Err()
}

// Run says that it is ready, waits for the start, and works until standard input ends.
func (w hotWorker) Run(ctx context.Context, server redisx.Server, namespace events.Namespace, stdin *bufio.Reader, stdout io.Writer) error {
	const grace = 5 * time.Second
	commands, reader, pubsub := server.Open(), server.Open(), server.Open()
	defer commands.Close()
	defer pubsub.Close()
	for _, client := range []redis.UniversalClient{commands, reader, pubsub} { // connected before the start
		if err := client.Ping(ctx).Err(); err != nil {
			return redisx.Explain(server, err)
		}
	}
	locker, err := locking.New(locking.Config{Redis: commands, PubSub: pubsub, Prefix: namespace.Locks()})
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	changes := router.Changes{Namespace: namespace, Source: fmt.Sprintf("/lockstep/bench/%d", os.Getpid()), Log: log}
	slots := router.NewSlots(w.slots)
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Redis: commands, Reader: reader, Prefix: string(namespace), Dead: namespace.Dead(),
		Group: events.WorkersGroup, Grace: grace, Key: changes.Key, Room: slots.Room, Log: log,
	})
	if err != nil {
		return err
	}
	r, err := router.New(router.Config{
		Log: log,
		Routes: []router.Route{{
			Name: "changes", Topic: namespace.Changes(), Subscriber: subscriber, Handler: w.handler(changes, commands, stdout),
			Locker: locker, Request: changes.Request, Slots: slots,
			Dispose: router.Disposer{Failed: changes.Failed, Log: log},
		}},
	})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, "ready", app.ReadBuild().Version); err != nil {
		return err
	}
	if _, err := stdin.ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the start: %w", err)
	}

	stopped := make(chan error, 1)
	go func() { stopped <- r.Run(context.WithoutCancel(ctx)) }()
	over := make(chan struct{})
	go func() { // outlives run only when that fails, and the process ends
		defer close(over)
		_, _ = io.Copy(io.Discard, stdin)
	}()
	select {
	case err := <-stopped:
		return fmt.Errorf("router: %w", errors.Join(err, subscriber.Close()))
	case <-over:
	case <-ctx.Done():
	}
	return app.Drain(context.WithoutCancel(ctx), grace, r, locker, slots, stopped)
}

// handler works on changes and prints a line for each time it did, settled or not.
func (w hotWorker) handler(changes router.Changes, client redis.UniversalClient, stdout io.Writer) message.HandlerFunc {
	along := settledAlong{client: client, changes: changes, from: "-"}
	var mu sync.Mutex
	say := func(d Done) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := fmt.Fprintln(stdout, d.Event, d.Began, d.Ended, d.Settled)
		return err
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		var done Done
		watched := changes
		watched.Handler = func(_ context.Context, job events.Job) (out events.Outcome, err error) {
			if done.Event, err = strconv.Atoi(job.Change.ID); err != nil {
				return out, err
			}
			if done.Began, err = rig.Monotonic(); err != nil {
				return out, err
			}
			time.Sleep(time.Duration(w.workMS) * time.Millisecond)
			out = pretendSynced(job)
			if w.coalesce {
				out.Covers = func(_ context.Context, other events.Job) (events.Outcome, bool) {
					covered := pretendSynced(other)
					covered.Result.Until = job.Entry // tells it from one that was worked on
					return covered, true
				}
			}
			done.Ended, err = rig.Monotonic()
			return out, err
		}
		produced, err := watched.Handle(msg)
		if done.Ended == 0 {
			return produced, err
		}
		if err != nil {
			return nil, errors.Join(err, say(done))
		}
		if done.Settled, err = rig.Monotonic(); err != nil {
			return nil, err
		}
		if err := say(done); err != nil || !w.coalesce {
			return produced, err
		}
		return produced, along.tell(msg.Context(), say)
	}
}

// settledAlong tells of the events that a process has settled along with others. Their results say so:
// a sibling that was about to be settled may have gone to another process at the last moment.
type settledAlong struct {
	client  redis.UniversalClient
	changes router.Changes
	mu      sync.Mutex
	from    string // where to go on reading the results
}

func (a *settledAlong) tell(ctx context.Context, say func(Done) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	entries, err := a.client.XRange(context.WithoutCancel(ctx), a.changes.Namespace.Results(), a.from, "+").Result()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		a.from = "(" + entry.ID
		payload, _ := entry.Values["payload"].(string)
		result, err := events.ParseResult([]byte(payload))
		if err != nil {
			return err
		}
		if result.Source != a.changes.Source || result.Until == "" {
			continue
		}
		event, err := strconv.Atoi(result.Deliveries[0])
		if err != nil {
			return err
		}
		now, err := rig.Monotonic()
		if err != nil {
			return err
		}
		if err := say(Done{Event: event, Began: now, Ended: now, Settled: now}); err != nil {
			return err
		}
	}
	return nil
}

// pretendSynced is what a sync of one file would have made of the job.
func pretendSynced(job events.Job) events.Outcome {
	commit := strings.Repeat("0", 40-len(job.Change.ID)) + job.Change.ID
	result := job.Result(events.ResultSynced)
	result.After = commit
	result.Path, result.Tree = job.Change.Repo.String(), ".lockstep/repos/"+job.Change.Repo.String()+"/trees/"+commit
	result.Files = []events.File{{Path: "a.txt", Status: events.FileModified}}
	return events.Outcome{Result: result, State: state.SyncedFields(result, job.Change.URL)}
}
