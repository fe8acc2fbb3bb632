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
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/redisx"
	"lockstep/internal/state"
	"lockstep/internal/term"
	"lockstep/locking"
	"lockstep/router"
)

// worker is one process of bench hot. It has the parts and the defaults of lockstep serve, with a pause instead of Git, and
// speaks the worker protocol.
type worker struct {
	prefix        string
	slots, workMS int
}

// NewWorkerCommand returns the hidden command of a worker.
func NewWorkerCommand(std term.Streams) *cobra.Command {
	var w worker
	cmd := rig.WorkerCommand(&cobra.Command{
		Use:       "hot-worker queue|work",
		Short:     "One process of bench hot",
		ValidArgs: []string{"queue", "work"},
	}, cobra.MatchAll(term.OneArg, cobra.OnlyValidArgs), func(cmd *cobra.Command, args []string, server redisx.Server) error {
		namespace, err := events.ParseNamespace(w.prefix)
		if err != nil {
			return term.UsageError(err)
		}
		if args[0] == "queue" {
			return queueChanges(cmd.Context(), server, namespace, cmd.InOrStdin(), std.Stdout)
		}
		return w.run(cmd.Context(), server, namespace, bufio.NewReader(cmd.InOrStdin()), std.Stdout)
	})
	flags := cmd.Flags()
	flags.StringVar(&w.prefix, "prefix", "", "`prefix` of all keys")
	flags.IntVar(&w.slots, "slots", 5, "number of events to work on concurrently")
	flags.IntVar(&w.workMS, "work-ms", 20, "`milliseconds` of work on an event")
	return cmd
}

// queueChanges prints ready, and publishes a change for each line of "<event> <repo>" as soon as it has read it.
func queueChanges(ctx context.Context, server redisx.Server, namespace events.Namespace, stdin io.Reader, stdout io.Writer) error {
	client := server.Open()
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		return redisx.Explain(server, err)
	}
	if err := rig.PrintReady(stdout); err != nil {
		return err
	}
	ref, err := events.ParseRef("main")
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		event, repo, _ := strings.Cut(lines.Text(), " ")
		change := events.Change{ID: event, URL: "https://example.com/" + repo + ".git", Ref: ref}
		if err := rig.Publish(ctx, client, namespace, change); err != nil {
			return err
		}
	}
	return lines.Err()
}

// run prints ready, waits for the start, and works until standard input ends.
func (w worker) run(ctx context.Context, server redisx.Server, namespace events.Namespace, stdin *bufio.Reader, stdout io.Writer) error {
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
	changes := handlers.Changes{Namespace: namespace, Source: fmt.Sprintf("/lockstep/bench/%d", os.Getpid()), Log: log}
	slots := make(chan struct{}, w.slots)
	var waiting atomic.Int64 // handlers without a slot
	room := func() int { return 4*w.slots - int(waiting.Load()) }
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Client: commands, Reader: reader, Prefix: string(namespace),
		ConsumerGroup: events.WorkersGroup, Grace: grace, Key: changes.Key, Room: room, Log: log,
	}, nil)
	if err != nil {
		return err
	}
	r, err := router.New(router.Config{
		Log: log,
		Routes: []router.Route{{
			Name: "changes", Topic: namespace.Changes(), Subscriber: subscriber, Handler: w.handler(changes, slots, &waiting, stdout),
			Locker: locker, Request: changes.Request,
			Dispose: changes.Dispose(router.Retry{}),
		}},
	})
	if err != nil {
		return err
	}
	if err := rig.AwaitStart(stdin, stdout); err != nil {
		return err
	}

	stopped := make(chan error, 1)
	running, stopRouter := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRouter()
	go func() { stopped <- router.Run(running, r) }()
	ended := make(chan struct{})
	go func() { // outlives run only if run fails, and then the process ends
		defer close(ended)
		_, _ = io.Copy(io.Discard, stdin)
	}()
	select {
	case err := <-stopped:
		return fmt.Errorf("router: %w", errors.Join(err, subscriber.Close()))
	case <-ended:
	case <-ctx.Done():
	}
	stopRouter()
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*grace)
	defer cancel()
	return errors.Join(locker.Close(draining), <-stopped)
}

// handler works on changes and prints a line for each, settled or not.
func (w worker) handler(
	changes handlers.Changes, slots chan struct{}, waiting *atomic.Int64, stdout io.Writer,
) message.HandlerFunc {
	var mu sync.Mutex
	report := func(d done) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := fmt.Fprintln(stdout, d.Event, d.Began, d.Ended, d.Settled)
		return err
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		var work done
		watched := changes
		watched.Handler = func(_ context.Context, job handlers.Job) (out handlers.Outcome, err error) {
			if work.Event, err = strconv.Atoi(job.Change.ID); err != nil {
				return out, err
			}
			waiting.Add(1)
			slots <- struct{}{}
			waiting.Add(-1)
			defer func() { <-slots }()
			work.Began = rig.Monotonic()
			time.Sleep(time.Duration(w.workMS) * time.Millisecond)
			out = pretendSynced(job)
			work.Ended = rig.Monotonic()
			return out, nil
		}
		produced, err := watched.Handle(msg)
		if work.Ended == 0 {
			return produced, err
		}
		if err != nil {
			return nil, errors.Join(err, report(work))
		}
		work.Settled = rig.Monotonic()
		return produced, report(work)
	}
}

// pretendSynced returns the outcome of a sync that changes one file.
func pretendSynced(job handlers.Job) handlers.Outcome {
	commit := strings.Repeat("0", 40-len(job.Change.ID)) + job.Change.ID
	result := job.Result(events.ResultSynced)
	result.After = commit
	result.Path, result.Tree = job.Change.Repo.String(), ".lockstep/repos/"+job.Change.Repo.String()+"/trees/"+commit
	result.Files = []events.File{{Path: "a.txt", Status: events.FileModified}}
	fields := state.Repo{}.SyncedFields(result, job.Change.URL)
	return handlers.Outcome{Result: result, State: fields}
}
