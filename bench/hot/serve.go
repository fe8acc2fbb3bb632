package hot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/stats"
)

// served measures processes of lockstep serve. Clients sync one new repository after the other, beside an obstacle.
type served struct {
	*bench
	env    *rig.Env
	server *rig.Redis
	remote *rig.Remote
	fast   *rig.Host
	sides  []rig.Side
}

func (b *bench) openServed(ctx context.Context, env *rig.Env) (s *served, err error) {
	s = &served{bench: b, env: env}
	if s.sides, err = env.Sides(ctx, b.against); err != nil {
		return nil, err
	}
	if s.server, err = env.OpenPrivateRedis(ctx, "--enable-debug-command", "yes"); err != nil {
		return nil, err
	}
	if s.remote, err = env.NewRemote(ctx, b.backlog); err != nil {
		return nil, err
	}
	s.fast, err = env.ServeHost(1, s.remote)
	return s, err
}

// play measures one side with new processes, an empty Redis and an empty volume.
func (s *served) play(ctx context.Context, side rig.Side, o obstacle) (f Figures, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Limit, errLimit)
	defer cancel()
	if err := s.server.Client.FlushAll(ctx).Err(); err != nil {
		return f, err
	}
	root, err := os.MkdirTemp(s.env.Dir, "root-")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(root)
	var workers []*rig.Process
	for range s.Processes {
		worker, err := s.env.StartBinary(ctx, side.Path, "serve", "--roles", "worker", "--redis", s.server.URL, "--root", root, "--slots", strconv.Itoa(s.Slots), "--log-level", "error")
		if err != nil {
			return f, err
		}
		defer func() { _ = worker.Kill() }()
		workers = append(workers, worker)
	}
	r, stop, err := s.openRun(ctx)
	if err != nil {
		return f, err
	}
	defer stop()
	if _, err := r.sync(ctx, s.fast.URLs("first", 1)[0]); err != nil { // the start of the workers does not count
		return f, err
	}
	host, err := s.place(ctx, r, o)
	if err != nil {
		return f, err
	}
	cold, err := s.syncCold(ctx, r)
	if err != nil {
		return f, err
	}
	f.Cold, f.Events = stats.NewLatency(cold), len(cold)
	if host != nil {
		f.Requests = int(host.Requests.Load())
	}
	for _, worker := range workers {
		timeouts, err := worker.CountLog("lock timeout")
		peak, errPeak := rig.Memory(worker.Cmd.Process.Pid, "VmHWM")
		if err := errors.Join(err, errPeak); err != nil {
			return f, err
		}
		f.Timeouts, f.Peak = f.Timeouts+timeouts, max(f.Peak, peak)
	}
	r.count(&f)
	return f, nil
}

// place brings about an obstacle, and returns its host, if it has one.
func (s *served) place(ctx context.Context, r *servedRun, o obstacle) (host *rig.Host, err error) {
	switch o.name {
	case besideHung, besideHungHosts:
		n, hosts := 100, 1
		if o.name == besideHungHosts {
			n, hosts = 300, 300
		}
		var urls []string
		for range hosts {
			if host, err = s.env.ServeHost(2, rig.Hanging); err != nil {
				return nil, err
			}
			urls = append(urls, host.URLs("hung", n/hosts)...)
		}
		if hosts > 1 {
			host = nil
		}
		return host, r.publish(ctx, changesOf(urls))
	case besideLimited:
		if host, err = s.env.ServeHost(2, rig.Limiting); err != nil {
			return nil, err
		}
		return host, r.publish(ctx, changesOf(host.URLs("limited", 10_000)))
	case besideRedisHang:
		r.background.Go(func() {
			if app.Sleep(ctx, time.Second) {
				_ = r.client.Do(ctx, "DEBUG", "SLEEP", (s.duration + 2*time.Second).Seconds()).Err() // the longest PING tells
			}
		})
		return nil, nil
	case besideHuge:
		payload := make([]byte, 5<<20)
		for range 50 {
			values := []any{"_watermill_message_uuid", rig.Monotonic(), "metadata", "", "payload", payload}
			if err := r.client.XAdd(ctx, &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: values}).Err(); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	if o.hot == 0 {
		return nil, nil
	}
	if host, err = s.env.ServeHost(2, rig.Delayed(s.delay, s.remote)); err != nil {
		return nil, err
	}
	var changes []events.Change
	for i, url := range host.URLs("hot", o.hot) {
		for n := range s.backlog {
			ref, err := events.ParseRef("refs/heads/" + rig.RemoteBranch(n))
			if err != nil {
				return nil, err
			}
			changes = append(changes, events.Change{URL: url, Ref: ref, ID: fmt.Sprint("hot-", i, "-", n)})
		}
	}
	if err := r.publish(ctx, changes); err != nil {
		return nil, err
	}
	return host, rig.AwaitCount(ctx, 1, 5*time.Millisecond, func() (int64, error) { return host.Requests.Load(), nil })
}

func changesOf(urls []string) []events.Change {
	changes := make([]events.Change, len(urls))
	for i, url := range urls {
		changes[i].URL = url
	}
	return changes
}

// syncCold lets each client sync one new repository after the other, and returns how long each took.
func (s *served) syncCold(ctx context.Context, r *servedRun) (took []time.Duration, err error) {
	var mu sync.Mutex
	unique := rig.Monotonic()
	clients, ctx := errgroup.WithContext(ctx)
	until, next := time.Now().Add(s.duration), 0
	for range s.clients {
		clients.Go(func() error {
			for time.Now().Before(until) {
				mu.Lock()
				url := fmt.Sprintf("%sbench/cold-%d-%d.git", s.fast.Base, unique, next)
				next++
				mu.Unlock()
				d, err := r.sync(ctx, url)
				if err != nil {
					return err
				}
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			}
			return nil
		})
	}
	return took, clients.Wait()
}

// servedRun publishes changes and reads all results.
type servedRun struct {
	client     *redis.Client
	background sync.WaitGroup

	mu       sync.Mutex
	waiting  map[string]chan events.Result // by change ID
	results  map[string]int                // by change ID
	queued   int
	attempts int           // failed attempts in all results
	ping     time.Duration // the longest
}

// openRun starts to read results and to send PINGs, until stop is called.
func (s *served) openRun(ctx context.Context) (r *servedRun, stop func(), err error) {
	options, err := redis.ParseURL(s.server.URL)
	if err != nil {
		return nil, nil, err
	}
	options.MaxRetries, options.PoolSize, options.ReadTimeout = -1, 64, time.Hour // Redis may hang
	r = &servedRun{client: redis.NewClient(options), waiting: map[string]chan events.Result{}, results: map[string]int{}}
	ctx, cancel := context.WithCancel(ctx)
	r.background.Go(func() { r.readResults(ctx) })
	r.background.Go(func() {
		for app.Sleep(ctx, 10*time.Millisecond) {
			began := time.Now()
			_ = r.client.Ping(ctx).Err() // the time counts, whatever the answer
			r.mu.Lock()
			r.ping = max(r.ping, time.Since(began))
			r.mu.Unlock()
		}
	})
	return r, func() {
		cancel()
		_ = r.client.Close()
		r.background.Wait()
	}, nil
}

func (r *servedRun) readResults(ctx context.Context) {
	for from := "0"; ctx.Err() == nil; {
		read, err := r.client.XRead(ctx, &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Results(), from}, Count: 1000, Block: 100 * time.Millisecond}).Result()
		if err != nil {
			continue // nothing new, or the end
		}
		r.mu.Lock()
		for _, entry := range read[0].Messages {
			from = entry.ID
			payload, _ := entry.Values["payload"].(string)
			result, err := events.ParseResult([]byte(payload))
			if err != nil {
				continue // its changes count as lost
			}
			r.attempts += max(0, result.Attempts-1)
			for _, id := range result.Deliveries {
				r.results[id]++
				if ch := r.waiting[id]; ch != nil {
					ch <- result
					delete(r.waiting, id)
				}
			}
		}
		r.mu.Unlock()
	}
}

// sync publishes a change, waits for its result, and returns how long that took.
func (r *servedRun) sync(ctx context.Context, url string) (time.Duration, error) {
	change, err := events.NewChange(events.Change{URL: url, Source: "/lockstep/bench"})
	if err != nil {
		return 0, err
	}
	ch, began := make(chan events.Result, 1), time.Now()
	r.mu.Lock()
	r.waiting[change.ID] = ch
	r.mu.Unlock()
	if _, err := rig.Publish(ctx, r.client, events.DefaultNamespace, change); err != nil {
		return 0, err
	}
	select {
	case result := <-ch:
		if result.Type != events.ResultSynced {
			return 0, fmt.Errorf("the sync of %s ended as %s: %s", url, result.Type, result.Error)
		}
		return time.Since(began), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("await the sync of %s: %w", url, context.Cause(ctx))
	}
}

// publish publishes changes that nobody waits for.
func (r *servedRun) publish(ctx context.Context, changes []events.Change) error {
	publishers, ctx := errgroup.WithContext(ctx)
	publishers.SetLimit(32)
	for _, change := range changes {
		publishers.Go(func() error {
			_, err := rig.Publish(ctx, r.client, events.DefaultNamespace, change)
			return err
		})
	}
	r.queued = len(changes)
	return publishers.Wait()
}

// count adds figures of the results.
func (r *servedRun) count(f *Figures) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.Beside = len(r.results) - f.Events - 1 // one is the warm-up
	f.Left, f.Attempts, f.Ping = r.queued-f.Beside, r.attempts, r.ping
	for n := range maps.Values(r.results) {
		f.Doubled += n - 1
	}
}
