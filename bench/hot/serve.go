package hot

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/stats"
)

// prepareServed makes the processes of lockstep serve the contestants.
func (b *bench) prepareServed(ctx context.Context) error {
	sides, err := b.env.Sides(ctx, b.against)
	if err != nil {
		return err
	}
	if b.remote, err = b.env.NewRemote(ctx, b.backlog); err != nil {
		return err
	}
	if b.fast, err = b.env.ServeHost(1, b.remote); err != nil {
		return err
	}
	if b.slow, err = b.env.ServeHost(2, rig.Delayed(b.delay, b.remote)); err != nil {
		return err
	}
	for _, side := range sides {
		b.names = append(b.names, side.Name)
	}
	b.measure = func(ctx context.Context, i, hot int, _ string) (Figures, string, error) {
		f, err := b.playServed(ctx, sides[i], hot)
		return f, "", err
	}
	return nil
}

// playServed measures one side with new processes, an empty Redis and an empty volume.
func (b *bench) playServed(ctx context.Context, side rig.Side, hot int) (f Figures, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.Limit, errLimit)
	defer cancel()
	if err := b.server.Client.FlushAll(ctx).Err(); err != nil {
		return f, err
	}
	changes, err := newLedger(b.server, events.DefaultNamespace)
	if err != nil {
		return f, err
	}
	root, err := os.MkdirTemp(b.env.Dir, "root-")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(root)
	workers, err := workload{b.Processes, b.Slots}.startBinary(ctx, b.env, b.server, side.Path, root)
	defer workers.kill()
	if err != nil {
		return f, err
	}
	if err := changes.warmUp(ctx, b.fast.URLs(fmt.Sprint("first-", rig.Monotonic()), 1)[0]); err != nil {
		return f, err
	}
	if hot > 0 {
		if err := b.queueHot(ctx, changes, hot); err != nil {
			return f, err
		}
	}
	cold, err := b.syncCold(ctx, changes)
	if err != nil {
		return f, err
	}
	f.Cold, f.Events = stats.NewLatency(cold), len(cold)
	if err := changes.read(ctx); err != nil {
		return f, err
	}
	for id := range changes.queued {
		if _, done := changes.done[id]; !done {
			f.HotLeft++
		}
	}
	f.Hot = len(changes.queued) - 1 - f.HotLeft // one is the warm-up
	f.Doubled = changes.repeated
	f.Waits, err = workers.countLog("lock timeout")
	return f, err
}

// queueHot queues all branches of the hot repositories, and waits until the first request for one arrives.
func (b *bench) queueHot(ctx context.Context, changes *ledger, hot int) error {
	before, urls := b.slow.Requests.Load(), b.slow.URLs("hot", hot)
	_, err := changes.publishEvery(ctx, 0, hot*b.backlog, func(i int) (events.Change, error) {
		ref, err := events.ParseRef("refs/heads/" + rig.RemoteBranch(i/hot))
		return events.Change{URL: urls[i%hot], Ref: ref}, err
	})
	if err != nil {
		return err
	}
	return rig.AwaitCount(ctx, before+1, 5*time.Millisecond, func() (int64, error) { return b.slow.Requests.Load(), nil })
}

// syncCold lets each client sync one new repository after the other, and returns how long each took.
func (b *bench) syncCold(ctx context.Context, changes *ledger) (took []time.Duration, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var mu sync.Mutex // guards took and waiting
	waiting := map[string]chan events.Result{}
	from := "$"
	if last, err := b.server.Client.XRevRangeN(ctx, changes.namespace.Results(), "+", "-", 1).Result(); err == nil && len(last) > 0 {
		from = last[0].ID
	}
	var reading, clients sync.WaitGroup
	reading.Go(func() {
		client := b.server.Open()
		defer client.Close()
		for ctx.Err() == nil {
			read, err := client.XRead(ctx, &redis.XReadArgs{Streams: []string{changes.namespace.Results(), from}, Count: 100, Block: 100 * time.Millisecond}).Result()
			if err != nil {
				continue // nothing new within the block, or the end
			}
			mu.Lock()
			for _, entry := range read[0].Messages {
				from = entry.ID
				payload, _ := entry.Values["payload"].(string)
				result, err := events.ParseResult([]byte(payload))
				if err != nil {
					stop(err)
					break
				}
				for _, id := range result.Deliveries {
					if ch := waiting[id]; ch != nil {
						ch <- result
						delete(waiting, id)
					}
				}
			}
			mu.Unlock()
		}
	})
	until, number := time.Now().Add(b.duration), 0
	for range b.clients {
		clients.Go(func() {
			for time.Now().Before(until) && ctx.Err() == nil {
				ch := make(chan events.Result, 1)
				mu.Lock()
				number++
				url := fmt.Sprintf("%sbench/cold-%d-%d.git", b.fast.Base, until.UnixNano(), number)
				change, err := events.NewChange(events.Change{URL: url, Source: "/lockstep/bench"})
				waiting[change.ID] = ch
				mu.Unlock()
				began := time.Now()
				if err == nil {
					_, err = rig.Publish(ctx, b.server.Client, changes.namespace, change)
				}
				if err != nil {
					stop(err)
					return
				}
				select {
				case result := <-ch:
					if result.Type != events.ResultSynced {
						stop(fmt.Errorf("the sync of %s ended as %s: %s", url, result.Type, result.Error))
						return
					}
					mu.Lock()
					took = append(took, time.Since(began))
					mu.Unlock()
				case <-ctx.Done():
					return
				}
			}
		})
	}
	clients.Wait()
	err = context.Cause(ctx)
	stop(nil)
	reading.Wait()
	return took, err
}
