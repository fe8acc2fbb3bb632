package rig

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/redisx"
)

// Service is a process of lockstep serve.
type Service struct {
	*Process
	Redis *Redis
	Root  string // of its volume
}

// Serve starts lockstep serve on a Redis and a volume.
func (e *Env) Serve(ctx context.Context, side Side, server *Redis, root string, args ...string) (*Service, error) {
	args = append([]string{"serve", "--redis", server.URL, "--root", root, "--log-level", "error"}, args...)
	process, err := e.StartBinary(ctx, side.Path, args...)
	return &Service{Process: process, Redis: server, Root: root}, err
}

// Spent is CPU time.
type Spent struct {
	Worker time.Duration `json:"worker_ns"`
	Redis  time.Duration `json:"redis_ns"`
}

// CPU returns the CPU time since the start of the process and of its Redis.
func (s *Service) CPU(ctx context.Context) (spent Spent, err error) {
	if spent.Worker, err = CPUTime(s.Cmd.Process.Pid); err != nil {
		return spent, err
	}
	spent.Redis, err = s.Redis.CPU(ctx)
	return spent, err
}

// Per returns the CPU time since before, for one of n changes.
func (s Spent) Per(n int, before Spent) Spent {
	return Spent{(s.Worker - before.Worker) / time.Duration(n), (s.Redis - before.Redis) / time.Duration(n)}
}

// Follower publishes changes and reads all results.
type Follower struct {
	Client *redis.Client // waits even if Redis hangs
	stop   func()

	mu      sync.Mutex
	waiting map[string]*Wait // by change ID
	counts  map[string]int   // results of each change
	retries int              // failed attempts in all results
}

// Wait waits for the result of a change.
type Wait struct {
	Result events.Result // once Await has returned nil
	took   time.Duration
	due    time.Time
	done   chan struct{}
}

// Follow reads results until Close is called, at the latest at the end of the run.
func (e *Env) Follow(ctx context.Context, server *Redis) (*Follower, error) {
	options, err := redis.ParseURL(server.URL)
	if err != nil {
		return nil, err
	}
	options.MaxRetries, options.PoolSize, options.ReadTimeout = -1, 64, time.Hour
	f := &Follower{Client: redis.NewClient(options), waiting: map[string]*Wait{}, counts: map[string]int{}}
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { f.read(ctx) })
	f.stop = sync.OnceFunc(func() {
		cancel()
		_ = f.Client.Close()
		reading.Wait()
	})
	e.Cleanup(f.stop)
	return f, nil
}

// Close stops reading results.
func (f *Follower) Close() { f.stop() }

func (f *Follower) read(ctx context.Context) {
	for from := "0"; ctx.Err() == nil; {
		args := &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Results(), from}, Count: 1000, Block: 100 * time.Millisecond}
		read, err := f.Client.XRead(ctx, args).Result()
		if err != nil {
			redisx.Pause(ctx, time.Millisecond) // nothing new, or Redis hangs
			continue
		}
		now := time.Now()
		for _, entry := range read[0].Messages {
			from = entry.ID
			payload, _ := entry.Values["payload"].(string)
			if result, err := events.ParseResult([]byte(payload)); err == nil { // otherwise Await fails
				f.note(result, now)
			}
		}
	}
}

func (f *Follower) note(result events.Result, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retries += max(0, result.Attempts-1)
	for _, id := range result.Deliveries {
		f.counts[id]++
		if w := f.waiting[id]; w != nil {
			w.Result, w.took = result, now.Sub(w.due)
			close(w.done)
			delete(f.waiting, id)
		}
	}
}

// Counts returns how many changes have results, how many results they have beyond the first, and the failed attempts in results.
func (f *Follower) Counts() (answered, doubled, retries int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.counts {
		doubled += n - 1
	}
	return len(f.counts), doubled, f.retries
}

// Expect returns a wait for the result of a change that is not published yet.
func (f *Follower) Expect(id string, due time.Time) *Wait {
	w := &Wait{due: due, done: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting[id] = w
	return w
}

// Publish publishes a change.
func (f *Follower) Publish(ctx context.Context, change events.Change) (*Wait, error) {
	change.ID = uuid.NewString()
	w := f.Expect(change.ID, time.Now())
	return w, Publish(ctx, f.Client, events.DefaultNamespace, change)
}

// PublishAll publishes changes concurrently.
func (f *Follower) PublishAll(ctx context.Context, changes []events.Change) ([]*Wait, error) {
	publishers, ctx := errgroup.WithContext(ctx)
	publishers.SetLimit(32)
	waits := make([]*Wait, len(changes))
	for i, change := range changes {
		publishers.Go(func() (err error) {
			waits[i], err = f.Publish(ctx, change)
			return err
		})
	}
	return waits, publishers.Wait()
}

// Answered reports whether the change has its result.
func (w *Wait) Answered() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// Await waits for the result, and returns the time from when the change was due until the result was read. It fails if the change did.
func (w *Wait) Await(ctx context.Context) (time.Duration, error) {
	select {
	case <-w.done:
	case <-ctx.Done():
		return 0, fmt.Errorf("await a result: %w", context.Cause(ctx))
	}
	if w.Result.Type != events.ResultSynced {
		return 0, fmt.Errorf("the sync of %s ended as %s: %v", w.Result.Repo, w.Result.Type, w.Result.Error)
	}
	return w.took, nil
}
