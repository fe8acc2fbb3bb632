package cells

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/cells"
	"lockstep/internal/cli/term"
	"lockstep/internal/stats"
	"lockstep/locking"
	"lockstep/router"
)

// bench holds the flags.
type bench struct{ events, slots, rounds int }

// NewCommand returns the command bench cells.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.Command(std, &cobra.Command{
		Use:   "cells",
		Short: "Measure what a change costs with 1, 2 and 4 cells on a Redis Cluster",
		Long: "Let workers settle changes of many repositories, with a lease, a result and a settlement for each and a handler that does\n" +
			"nothing: in a deployment without cells, and in 1, 2 and 4 cells, all on a private Redis Cluster of three masters. Each\n" +
			"cell has the same number of changes and of slots; the cost of a change is the processor time of workers and Redis. Rounds alternate, and\n" +
			"figures are medians. It fails if a change is lost, is done in a cell where its repository is not, or costs more than 5 %\n" +
			"more in a cell than without.",
		Example: "  go run ./bench cells\n  go run ./bench cells --events 10000 --rounds 5 --json",
	}, b.check, b.run)
	cmd.Flags().IntVar(&b.events, "events", 4000, "number of changes for each cell in a round")
	cmd.Flags().IntVar(&b.slots, "slots", 16, "number of changes to work on concurrently in each cell")
	cmd.Flags().IntVar(&b.rounds, "rounds", 5, "number of rounds")
	return cmd
}

func (b *bench) check(func(string) bool) error {
	if b.events < 100 || b.slots < 4 || b.rounds < 1 {
		return errors.New("want at least 100 events, 4 slots and 1 round")
	}
	return nil
}

// Report compares numbers of cells.
type Report struct {
	Machine rig.Machine `json:"machine"`
	Events  int         `json:"events"`
	Rounds  int         `json:"rounds"`
	Rows    []row       `json:"rows"`
}

// row has the figures of one contestant. The first row is a deployment without cells.
type row struct {
	Name      string        `json:"name"`
	Masters   int           `json:"masters"` // of Redis that have keys of a cell
	PerSecond float64       `json:"changes_per_second"`
	Cost      time.Duration `json:"cost_ns"` // CPU time of workers and Redis for a change
	Ratio     float64       `json:"cost_ratio"`
}

// maxRatio is the limit of the verdict.
const maxRatio = 1.05

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	table := rig.NewTable(w)
	fmt.Fprintf(table, "contestant\tmasters\tchanges/s\tcost\tagainst none\t\n")
	for _, row := range r.Rows {
		fmt.Fprintf(table, "%s\t%d\t%.0f\t%v\t%.3f\t\n", row.Name, row.Masters, row.PerSecond, row.Cost.Round(100*time.Nanosecond), row.Ratio)
	}
	return table.Flush()
}

// Verdict returns an error if a change costs more in a cell than it may.
func (r Report) Verdict() error {
	for _, row := range r.Rows {
		if row.Ratio > maxRatio {
			return fmt.Errorf("a change costs %.3f times what it does without cells with %s, want at most %.2f", row.Ratio, row.Name, maxRatio)
		}
	}
	return nil
}

// contestants are numbers of cells; 0 is a deployment without a directory.
var contestants = []int{0, 1, 2, 4}

func (b *bench) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	server, err := openCluster(ctx, env)
	if err != nil {
		return nil, err
	}
	report := Report{Machine: server.Machine(), Events: b.events, Rounds: b.rounds, Rows: make([]row, len(contestants))}
	names := []string{"no cells", "1 cell", "2 cells", "4 cells"}
	rates, costs, ratios := make([][]float64, len(names)), make([][]float64, len(names)), make([][]float64, len(names))
	err = env.Alternate(b.rounds, names, func(round, i int) error {
		f, err := b.measure(ctx, server, contestants[i])
		if err != nil {
			return err
		}
		rates[i], costs[i] = append(rates[i], f.rate), append(costs[i], f.cost)
		ratios[i] = append(ratios[i], f.cost/costs[0][round])
		report.Rows[i].Masters = f.masters
		return nil
	})
	for i, name := range names {
		row := &report.Rows[i]
		row.Name, row.PerSecond, row.Cost, row.Ratio = name, stats.Median(rates[i]), time.Duration(stats.Median(costs[i])), stats.Median(ratios[i])
	}
	return report, err
}

type figures struct {
	rate, cost float64 // changes a second; ns of CPU time for a change
	masters    int
}

// measure lets n cells settle the changes.
func (b *bench) measure(ctx context.Context, server *cluster, n int) (figures, error) {
	set, directory, err := b.open(ctx, server, n)
	if err != nil {
		return figures{}, err
	}
	used := map[int64]bool{}
	for _, cell := range set.Members() {
		used[server.Client.ClusterKeySlot(ctx, string(cell.Namespace)).Val()*masters/slots] = true
	}
	waiting, err := b.publish(ctx, server, set)
	if err != nil {
		return figures{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	began, spent, err := time.Now(), time.Duration(0), error(nil)
	if spent, err = b.spent(ctx, server); err != nil {
		return figures{}, err
	}
	g, running := errgroup.WithContext(ctx)
	running, stop := context.WithCancel(running)
	defer stop()
	for _, cell := range set.Members() {
		g.Go(func() error { return b.work(running, server, directory, cell) })
	}
	if err := awaitResults(ctx, server, waiting); err != nil {
		stop()
		return figures{}, errors.Join(err, g.Wait())
	}
	took := time.Since(began)
	after, err := b.spent(ctx, server)
	stop()
	total := float64(b.events * len(set.Members()))
	return figures{total / took.Seconds(), float64(after-spent) / total, len(used)}, errors.Join(err, g.Wait())
}

// open returns a new deployment, or cells of a new directory.
func (b *bench) open(ctx context.Context, server *cluster, n int) (*cells.Set, *cells.Directory, error) {
	run := uuid.NewString()
	if n == 0 {
		return cells.Single(server.Client, cells.Member{Namespace: events.Namespace("lockstep-bench-" + run + ":{0}:")}), nil, nil
	}
	directory, err := cells.OpenOrNew(ctx, server.Client, events.Namespace("lockstep-bench-"+run+":{dir}:"))
	if err != nil {
		return nil, nil, err
	}
	for i := range n { // eu-1 to eu-4 are on all three masters
		name := fmt.Sprintf("eu-%d", i+1)
		if _, err := directory.Add(ctx, name, events.Namespace("lockstep-bench-"+run+":{"+name+"}:"), 100); err != nil {
			return nil, nil, err
		}
	}
	return cells.All(server.Client, directory), directory, directory.Settle(ctx, directory.Epoch())
}

// publish adds a change of each repository to the stream of its cell. It returns the number of changes in each.
func (b *bench) publish(ctx context.Context, server *cluster, set *cells.Set) (map[cells.Member]int64, error) {
	waiting := map[cells.Member]int64{}
	pipe := server.Client.Pipeline()
	total := b.events * len(set.Members())
	for i := range total {
		change, err := events.NewChange(events.Change{ID: uuid.NewString(), Source: "/bench", URL: fmt.Sprintf("https://example.com/bench/repo-%d.git", i)})
		if err != nil {
			return nil, err
		}
		cell, err := set.Of(change.Repo)
		if err != nil {
			return nil, err
		}
		msg, err := stream.ChangeMessage(change)
		if err != nil {
			return nil, err
		}
		fields, err := stream.Fields(msg)
		if err != nil {
			return nil, err
		}
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: cell.Namespace.Changes(), Values: fields})
		waiting[cell]++
		if (i+1)%1000 == 0 || i == total-1 {
			if _, err := pipe.Exec(ctx); err != nil {
				return nil, err
			}
		}
	}
	return waiting, nil
}

// spent returns the CPU time of this process, which has the workers, and of Redis.
func (b *bench) spent(ctx context.Context, server *cluster) (time.Duration, error) {
	own, err := rig.CPUTime(os.Getpid())
	if err != nil {
		return 0, err
	}
	redis, err := server.cpu(ctx)
	return own + redis, err
}

// work runs the worker of a cell until ctx is done.
func (b *bench) work(ctx context.Context, server *cluster, directory *cells.Directory, cell cells.Member) error {
	client, pubsub, reader := server.Open(), server.Open(), server.Open()
	defer client.Close()
	defer pubsub.Close()
	log := slog.New(slog.DiscardHandler)
	locker, err := locking.New(locking.Config{Redis: client, PubSub: pubsub, Prefix: cell.Namespace.Locks(), Log: log})
	if err != nil {
		return err
	}
	changes := &router.Changes{Namespace: cell.Namespace, Source: "/bench", Log: log,
		Handler: func(_ context.Context, job events.Job) (events.Outcome, error) {
			return events.Outcome{Result: job.Result(events.ResultSynced), State: map[string]string{"synced": "1"}}, nil
		}}
	slots := router.NewSlots(b.slots)
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Redis: client, Reader: reader, Prefix: string(cell.Namespace), Dead: cell.Namespace.Dead(), Group: events.WorkersGroup,
		Key: changes.Key, Room: slots.Room, Log: log,
	})
	if err != nil {
		return err
	}
	route := router.Route{Name: "changes", Topic: cell.Namespace.Changes(), Subscriber: subscriber, Handler: changes.Handle,
		Locker: locker, Request: changes.Request, Slots: slots, Dispose: router.Disposer{Failed: changes.Failed, Log: log}}
	if directory != nil {
		forwarder := cells.Forwarder{Directory: directory, Cell: cell.Name}
		changes.Elsewhere = forwarder.Forward
		route.Forward, route.Forwarded = changes.Forward, changes.OnForward
	}
	r, err := router.New(router.Config{Log: log, Routes: []router.Route{route}})
	if err != nil {
		return err
	}
	stopped := make(chan error, 1)
	running, stopRouter := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRouter()
	go func() { stopped <- router.Run(running, r) }()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	return app.Drain(context.WithoutCancel(ctx), 5*time.Second, stopRouter, locker, slots, stopped)
}

// awaitResults returns when each cell has a result for each of its changes. More means that a change was done twice.
func awaitResults(ctx context.Context, server *cluster, waiting map[cells.Member]int64) error {
	for {
		done := true
		for cell, want := range waiting {
			n, err := server.Client.XLen(ctx, cell.Namespace.Results()).Result()
			if err != nil {
				return err
			}
			if n > want {
				return fmt.Errorf("cell %s has %d results of %d changes", cell.Name, n, want)
			}
			done = done && n == want
		}
		if done {
			return nil
		}
		if !app.Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("changes are lost or too slow: %w", context.Cause(ctx))
		}
	}
}
