package hosts_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/hosts"
)

// TestConcurrentRepositoriesAreAllServed runs three processes with Run. Each repository tries again only when it is woken.
func TestConcurrentRepositoriesAreAllServed(t *testing.T) {
	t.Parallel()
	const repos, limit = 200, 4
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	wake := map[string]chan struct{}{}
	for i := range repos {
		wake[fmt.Sprint("a/", i)] = make(chan struct{}, 1)
	}
	r := newRig(t, 3, func(cfg *hosts.Config) {
		cfg.Limit = limit
		cfg.Wake = func(_ context.Context, waiters []hosts.Waiter) ([]bool, error) {
			for _, w := range waiters {
				select {
				case wake[w.Key] <- struct{}{}:
				default:
				}
			}
			return nil, nil
		}
	})
	running, stop := context.WithCancel(ctx)
	var pumps, jobs sync.WaitGroup
	for _, p := range r.processes {
		pumps.Go(func() { p.Run(running) })
	}
	var inUse, most atomic.Int64
	for i := range repos {
		p := r.processes[i%3]
		path, err := events.ParseRepoPath(fmt.Sprint("a/", i))
		if err != nil {
			t.Fatal(err)
		}
		req := hosts.Request{Host: host, Repo: path, Kind: []hosts.Kind{hosts.Push, hosts.Retry, hosts.Poll}[i/3%3]}
		jobs.Go(func() {
			for {
				permit, err := p.Enter(ctx, req)
				if err == nil {
					n := inUse.Add(1)
					for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
					}
					inUse.Add(-1)
					permit.Done(ctx, success)
					return
				}
				if _, ok := errors.AsType[*hosts.Limited](err); !ok {
					t.Errorf("%s: %v", path, err)
					return
				}
				select {
				case <-wake[path.Key()]:
				case <-ctx.Done():
					t.Errorf("%s: not woken", path)
					return
				}
			}
		})
	}
	jobs.Wait()
	stop()
	pumps.Wait()
	if most.Load() > limit {
		t.Errorf("%d requests at once, the limit is %d", most.Load(), limit)
	}
	if h := r.state(); h.InUse != 0 || h.Waiting != 0 {
		t.Errorf("at the end %+v", h)
	}
}
