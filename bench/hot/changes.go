package hot

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/stats"
)

// ledger publishes changes and reads their results. All times are those of the stream entries.
type ledger struct {
	client    redis.UniversalClient
	namespace events.Namespace
	publisher *stream.Publisher
	queued    map[string]time.Time // by change ID
	done      map[string]outcome   // by change ID
	repeated  int                  // results for a change that had one
	from      string               // ID of the last result read
}

type outcome struct {
	at       time.Time
	synced   bool
	attempts int
}

func newLedger(server *rig.Redis, namespace events.Namespace) (*ledger, error) {
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Redis: server.Client})
	if err != nil {
		return nil, err
	}
	return &ledger{
		client: server.Client, namespace: namespace, publisher: publisher,
		queued: map[string]time.Time{}, done: map[string]outcome{}, from: "-",
	}, nil
}

// publish publishes a change and returns its ID.
func (l *ledger) publish(ctx context.Context, change events.Change) (string, error) {
	change.Source = "/lockstep/bench"
	change, err := events.NewChange(change)
	if err != nil {
		return "", err
	}
	msg, err := stream.ChangeMessage(change)
	if err != nil {
		return "", err
	}
	entry, err := l.publisher.Add(ctx, l.namespace.Changes(), msg)
	if err != nil {
		return "", err
	}
	l.queued[change.ID] = events.EntryTime(entry)
	return change.ID, nil
}

// publishURLs publishes a change for each URL as publishEvery does.
func (l *ledger) publishURLs(ctx context.Context, interval time.Duration, urls []string) ([]string, error) {
	return l.publishEvery(ctx, interval, len(urls), func(i int) (events.Change, error) { return events.Change{URL: urls[i]}, nil })
}

// warmUp syncs a repository, so that the start of the workers is not measured.
func (l *ledger) warmUp(ctx context.Context, url string) error {
	ids, err := l.publishURLs(ctx, 0, []string{url})
	if err != nil {
		return err
	}
	if err := l.await(ctx, ids, rig.RoundGrace); err != nil {
		return err
	}
	if !l.done[ids[0]].synced {
		return fmt.Errorf("the workers have not synced %s in %v", url, rig.RoundGrace)
	}
	return nil
}

// publishEvery publishes n changes at fixed intervals, as fast as possible if interval is 0, and returns their IDs.
func (l *ledger) publishEvery(ctx context.Context, interval time.Duration, n int, change func(i int) (events.Change, error)) ([]string, error) {
	ids, began := make([]string, n), time.Now()
	for i := range ids {
		if wait := time.Until(began.Add(time.Duration(i) * interval)); wait > 0 && !app.Sleep(ctx, wait) {
			return nil, context.Cause(ctx)
		}
		next, err := change(i)
		if err != nil {
			return nil, err
		}
		if ids[i], err = l.publish(ctx, next); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// read reads the results that are new since the last call.
func (l *ledger) read(ctx context.Context) error {
	const batch = 1000
	for {
		entries, err := l.client.XRangeN(ctx, l.namespace.Results(), l.from, "+", batch).Result()
		if err != nil {
			return err
		}
		for _, entry := range entries {
			l.from = "(" + entry.ID
			payload, _ := entry.Values["payload"].(string)
			result, err := events.ParseResult([]byte(payload))
			if err != nil {
				return err
			}
			for _, id := range result.Deliveries {
				if _, again := l.done[id]; again {
					l.repeated++
					continue
				}
				l.done[id] = outcome{events.EntryTime(entry.ID), result.Type == events.ResultSynced, result.Attempts}
			}
		}
		if len(entries) < batch {
			return nil
		}
	}
}

// await waits until all these changes have results, or the limit has passed.
func (l *ledger) await(ctx context.Context, ids []string, limit time.Duration) error {
	for deadline := time.Now().Add(limit); ; {
		if err := l.read(ctx); err != nil {
			return err
		}
		pending := slices.ContainsFunc(ids, func(id string) bool { _, done := l.done[id]; return !done })
		if !pending || time.Now().After(deadline) {
			return nil
		}
		if !app.Sleep(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// latency waits for these changes as await does, and returns how long they took.
func (l *ledger) latency(ctx context.Context, ids []string, limit time.Duration) (Latency, error) {
	if err := l.await(ctx, ids, limit); err != nil {
		return Latency{}, err
	}
	now, err := l.client.Time(ctx).Result()
	if err != nil {
		return Latency{}, err
	}
	latency, took := Latency{Changes: len(ids)}, make([]time.Duration, len(ids))
	for i, id := range ids {
		end := now
		switch result, done := l.done[id]; {
		case !done:
			latency.Pending++
		case !result.synced:
			latency.Failed++
			end = result.at
		default:
			end = result.at
		}
		took[i] = end.Sub(l.queued[id])
	}
	latency.Latency = stats.NewLatency(took)
	return latency, nil
}

// attempts returns how many more attempts than one these changes needed in all, as far as they have results.
func (l *ledger) attempts(ids []string) (more int) {
	for _, id := range ids {
		more += max(0, l.done[id].attempts-1)
	}
	return more
}

// numbered returns changes of a worker that pauses: their IDs count on, and they take turns over n repositories.
func numbered(next *int, name string, n int) func(i int) (events.Change, error) {
	return func(i int) (events.Change, error) {
		*next++
		return events.Change{ID: strconv.Itoa(*next), URL: fmt.Sprintf("https://example.com/bench/%s-%d.git", name, i%n)}, nil
	}
}

// syncCold publishes a change to each of n new repositories at a fixed rate, and returns how long they took.
func syncCold(ctx context.Context, env *rig.Env, changes *ledger, from *rig.Host, name string, n, rate int, limit time.Duration) (Latency, error) {
	env.Progress("%s: %d repositories at %d/s", name, n, rate)
	ids, err := changes.publishURLs(ctx, time.Second/time.Duration(rate), from.URLs(name, n))
	if err != nil {
		return Latency{}, err
	}
	return changes.latency(ctx, ids, limit)
}
