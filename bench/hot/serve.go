package hot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/redisx"
	"lockstep/internal/stats"
)

// served measures processes of lockstep serve. Clients sync one new repository after the other, beside an obstacle.
type served struct {
	*bench
	env    *rig.Env
	server *rig.Redis
	forge  *rig.Forge
	fast   *rig.Host
	sides  []rig.Side
}

func (b *bench) openServed(ctx context.Context, env *rig.Env) (s *served, err error) {
	s = &served{bench: b, env: env}
	if s.sides, err = env.Sides(ctx, b.against); err != nil {
		return nil, err
	}
	if s.server, err = env.OpenRedis(ctx, "--enable-debug-command", "yes"); err != nil {
		return nil, err
	}
	if s.forge, err = env.NewForge(ctx, 1, 1); err != nil {
		return nil, err
	}
	s.forge.Default = map[string]int{"refs/heads/main": 0}
	for i := range b.backlog {
		s.forge.Default[branch(i)] = 0
	}
	s.fast, err = env.ServeHost(1, s.forge)
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
	var workers []*rig.Service
	for range s.Processes {
		worker, err := s.env.Serve(ctx, side, s.server, root, "--roles", "worker", "--slots", strconv.Itoa(s.Slots))
		if err != nil {
			return f, err
		}
		defer func() { _ = worker.Kill() }()
		workers = append(workers, worker)
	}
	follower, err := s.env.Follow(ctx, s.server)
	if err != nil {
		return f, err
	}
	defer follower.Close()
	if _, err := syncOne(ctx, follower, s.fast.URLs("first", 1)[0]); err != nil { // the start of the workers does not count
		return f, err
	}
	stopPings := ping(ctx, follower.Client, &f)
	defer stopPings()
	host, queued, err := s.place(ctx, follower, o)
	if err != nil {
		return f, err
	}
	cold, err := s.syncCold(ctx, follower)
	if err != nil {
		return f, err
	}
	stopPings()
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
	answered, doubled, retries := follower.Counts()
	f.Beside = answered - f.Events - 1 // one is the warm-up
	f.Left, f.Doubled, f.Attempts = queued-f.Beside, doubled, retries
	return f, nil
}

// ping sends PINGs, and sets the longest time of one, until the returned function is called.
func ping(ctx context.Context, client *redis.Client, f *Figures) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var pinging sync.WaitGroup
	pinging.Go(func() {
		for redisx.Pause(ctx, 10*time.Millisecond) {
			began := time.Now()
			_ = client.Ping(ctx).Err() // the time counts, whatever the answer
			f.Ping = max(f.Ping, time.Since(began))
		}
	})
	return func() {
		cancel()
		pinging.Wait()
	}
}

// place brings about an obstacle. It returns its host, if it has one, and the number of changes queued.
func (s *served) place(ctx context.Context, follower *rig.Follower, o obstacle) (host *rig.Host, queued int, err error) {
	var changes []events.Change
	switch o.name {
	case besideHung, besideHungHosts:
		n, hosts := 100, 1
		if o.name == besideHungHosts {
			n, hosts = 300, 300
		}
		for range hosts {
			if host, err = s.env.ServeHost(2, rig.Hanging); err != nil {
				return nil, 0, err
			}
			changes = append(changes, changesOf(host.URLs("hung", n/hosts))...)
		}
		if hosts > 1 {
			host = nil
		}
	case besideLimited:
		if host, err = s.env.ServeHost(2, rig.Limiting); err != nil {
			return nil, 0, err
		}
		changes = changesOf(host.URLs("limited", 10_000))
	case besideRedisHang:
		time.AfterFunc(time.Second, func() {
			_ = follower.Client.Do(ctx, "DEBUG", "SLEEP", (s.duration + 2*time.Second).Seconds()).Err() // the longest PING tells
		})
	case besideHuge:
		payload := make([]byte, 5<<20)
		for range 50 {
			values := []any{"_watermill_message_uuid", rig.Monotonic(), "metadata", "", "payload", payload}
			if err := follower.Client.XAdd(ctx, &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: values}).Err(); err != nil {
				return nil, 0, err
			}
		}
	default:
		return s.placeHot(ctx, follower, o.hot)
	}
	_, err = follower.PublishAll(ctx, changes)
	return host, len(changes), err
}

// placeHot queues changes of hot repositories, and returns once their host has a request.
func (s *served) placeHot(ctx context.Context, follower *rig.Follower, n int) (host *rig.Host, queued int, err error) {
	if n == 0 {
		return nil, 0, nil
	}
	if host, err = s.env.ServeHost(2, rig.Delayed(s.delay, s.forge)); err != nil {
		return nil, 0, err
	}
	var changes []events.Change
	for _, url := range host.URLs("hot", n) {
		for i := range s.backlog {
			ref, err := events.ParseRef(branch(i))
			if err != nil {
				return nil, 0, err
			}
			changes = append(changes, events.Change{URL: url, Ref: ref})
		}
	}
	if _, err := follower.PublishAll(ctx, changes); err != nil {
		return nil, 0, err
	}
	return host, len(changes), rig.AwaitCount(ctx, 1, func() (int64, error) { return host.Requests.Load(), nil })
}

func changesOf(urls []string) []events.Change {
	changes := make([]events.Change, len(urls))
	for i, url := range urls {
		changes[i].URL = url
	}
	return changes
}

// syncCold lets each client sync one new repository after the other, and returns how long each took.
func (s *served) syncCold(ctx context.Context, follower *rig.Follower) (took []time.Duration, err error) {
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
				d, err := syncOne(ctx, follower, url)
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

func branch(i int) string { return fmt.Sprint("refs/heads/branch-", i) }

// syncOne publishes a change, waits for its result, and returns how long that took.
func syncOne(ctx context.Context, follower *rig.Follower, url string) (time.Duration, error) {
	wait, err := follower.Publish(ctx, events.Change{URL: url})
	if err != nil {
		return 0, err
	}
	return wait.Await(ctx)
}
