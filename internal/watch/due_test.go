package watch_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/watch"
)

const pollKey, ofKey = "lockstep:{0}:poll", "lockstep:{0}:watch:of:"

func (b *bench) enqueueDue(limit int, usual time.Duration) (int, time.Duration) {
	b.t.Helper()
	n, next, err := b.EnqueueDue(context.Background(), limit, usual)
	if err != nil {
		b.t.Fatal(err)
	}
	return n, next
}

// ago pretends that the repository's last poll was requested d ago and the next one is due.
func (b *bench) ago(key string, d time.Duration) {
	b.t.Helper()
	ctx := context.Background()
	now := b.client.Time(ctx).Val()
	b.client.HSet(ctx, ofKey+key, "asked", now.Add(-d).UnixMilli())
	if err := b.client.ZAdd(ctx, pollKey, redis.Z{Score: float64(now.Add(-time.Millisecond).UnixMilli()), Member: key}).Err(); err != nil {
		b.t.Fatal(err)
	}
}

func TestDueRepositoryIsPolledOncePerInterval(t *testing.T) {
	b := newBench(t)
	b.put(of(t, "docs", "Acme/Widgets", ""), of(t, "docs", "acme/gadgets", ""))
	b.drain()
	if n, next := b.enqueueDue(10, time.Minute); n != 0 || next < 30*time.Second || next > 66*time.Second {
		t.Errorf("just put and polled: %d, next in %v", n, next)
	}
	b.ago("acme/widgets", 30*time.Second)
	if n, _ := b.enqueueDue(10, time.Minute); n != 0 {
		t.Error("polled again within nine tenths of the interval")
	}
	b.ago("acme/widgets", 55*time.Second)
	every := func() string { return b.client.HGet(context.Background(), ofKey+"acme/widgets", "every").Val() }
	if ms := every(); ms != "60000" {
		t.Errorf("polled every %q ms, want a minute", ms)
	}
	n, next := b.enqueueDue(10, time.Minute)
	if again, _ := b.enqueueDue(10, time.Minute); n != 1 || again != 0 || next <= 50*time.Second {
		t.Errorf("%d, %d, next in %v", n, again, next)
	}
	// A set that is written without a poll is scheduled for now, then rescheduled.
	if err := b.Silence(context.Background(), of(t, "docs", "acme/widgets", ""), "gone"); err != nil {
		t.Fatal(err)
	}
	if again, next := b.enqueueDue(10, time.Minute); again != 0 || next <= 50*time.Second {
		t.Errorf("written just after it was polled: %d, next in %v", again, next)
	}
	b.ago("acme/widgets", time.Hour)
	if again, _ := b.enqueueDue(10, 0); again != 0 || every() != "" {
		t.Errorf("without a default interval: %d, every %q ms", again, every())
	}
	changes := b.changes()
	if len(changes) != 1 || changes[0].Type != events.ChangeDue || changes[0].Repo.String() != "Acme/Widgets" || changes[0].OnBusy != events.BusySkip || changes[0].ID[:5] != "poll/" {
		t.Errorf("%+v", changes)
	}
}

func TestOverduePollsAreCounted(t *testing.T) {
	b := newBench(t)
	never := of(t, "docs", "acme/never", "")
	never.Poll = watch.Never
	often := of(t, "docs", "acme/often", "")
	often.Poll = watch.Interval(time.Minute)
	b.put(of(t, "docs", "acme/usual", ""), never, often)
	overdue := func(usually bool, want int64) {
		t.Helper()
		n, since, err := b.Overdue(t.Context(), usually)
		if err != nil || n != want || since.IsZero() != (want == 0) || want > 0 && time.Since(since) < time.Minute {
			t.Errorf("%d overdue since %v (%v), want %d", n, since, err, want)
		}
	}
	overdue(true, 0)
	long := float64(b.client.Time(t.Context()).Val().Add(-time.Hour).UnixMilli())
	for _, key := range []string{"acme/usual", "acme/never", "acme/often", "acme/gone"} {
		b.client.ZAdd(t.Context(), pollKey, redis.Z{Score: long, Member: key})
	}
	overdue(true, 2)
	overdue(false, 1)
	b.enqueueDue(10, time.Minute)
	overdue(true, 0)
}

func TestAddedAppDoesNotPostponeThePollForTheOthers(t *testing.T) {
	b := newBench(t)
	b.put(of(t, "docs", "acme/widgets", ""), of(t, "ci", "acme/widgets", ""))
	b.ago("acme/widgets", 55*time.Second)
	b.put(of(t, "scan", "acme/widgets", ""), of(t, "scan", "acme/widgets", "refs/tags/v*"))
	b.drain()
	if n, _ := b.enqueueDue(10, time.Minute); n != 1 {
		t.Errorf("%d polls queued after an interval, want one", n)
	}
}

func TestShortestIntervalWins(t *testing.T) {
	const hour = watch.Interval(time.Hour)
	for name, tc := range map[string]struct {
		polls []watch.Interval
		usual time.Duration
		want  time.Duration // 0: never
	}{
		"default":                     {[]watch.Interval{0}, 10 * time.Minute, 10 * time.Minute},
		"own interval":                {[]watch.Interval{hour}, time.Minute, time.Hour},
		"shorter of two":              {[]watch.Interval{2 * hour, hour}, time.Minute, time.Hour},
		"default is shorter":          {[]watch.Interval{hour, 0}, time.Minute, time.Minute},
		"own interval is shorter":     {[]watch.Interval{hour, 0}, 2 * time.Hour, time.Hour},
		"never":                       {[]watch.Interval{watch.Never}, time.Minute, 0},
		"never and an hour":           {[]watch.Interval{watch.Never, hour}, time.Minute, time.Hour},
		"never and default":           {[]watch.Interval{watch.Never, 0}, time.Minute, time.Minute},
		"polling disabled by default": {[]watch.Interval{0}, 0, 0},
		"polling disabled by default, own interval": {[]watch.Interval{0, hour}, 0, time.Hour},
	} {
		b := newBench(t)
		var watches []watch.Watch
		for i, poll := range tc.polls {
			w := of(t, fmt.Sprint("app", i), "acme/widgets", "")
			w.Poll = poll
			watches = append(watches, w)
		}
		b.put(watches...)
		b.drain()
		b.enqueueDue(10, tc.usual) // schedules the next poll
		if _, polled := b.client.ZScore(context.Background(), pollKey, "acme/widgets").Result(); polled != nil {
			if tc.want != 0 {
				t.Errorf("%s: not scheduled", name)
			}
			continue
		}
		b.ago("acme/widgets", 365*24*time.Hour)
		n, next := b.enqueueDue(10, tc.usual)
		if tc.want == 0 {
			if n != 0 || next < 50*time.Minute {
				t.Errorf("%s: %d queued, next in %v", name, n, next)
			}
			continue
		}
		if low, high := tc.want*89/100, tc.want*111/100; n != 1 || next < low || next > high {
			t.Errorf("%s: %d queued, next in %v, want about %v", name, n, next, tc.want)
		}
	}
}

func TestLostPollIsRescheduled(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	b.put(of(t, "docs", "acme/widgets", ""), of(t, "docs", "acme/gadgets", ""), of(t, "docs", "acme/spoilt", ""))
	b.drain()
	// Redis' clock was set back; a set that no longer exists; a key of another type.
	b.ago("acme/widgets", -24*time.Hour)
	b.client.ZAdd(ctx, pollKey, redis.Z{Member: "acme/gone"})
	b.client.Del(ctx, ofKey+"acme/spoilt")
	b.client.Set(ctx, ofKey+"acme/spoilt", "mine", 0)
	if n, next := b.enqueueDue(10, time.Minute); n != 1 || next <= 50*time.Second {
		t.Errorf("%d queued, next in %v", n, next)
	}
	if queued := b.drain(); !slices.Equal(queued, []string{"due acme/widgets"}) {
		t.Errorf("%q", queued)
	}
	if left := b.client.ZRange(ctx, pollKey, 0, -1).Val(); !slices.Equal(left, []string{"acme/gadgets", "acme/widgets"}) && !slices.Equal(left, []string{"acme/widgets", "acme/gadgets"}) {
		t.Errorf("left: %q", left)
	}
	empty := newBench(t)
	if n, next := empty.enqueueDue(10, time.Minute); n != 0 || next != 30*24*time.Hour {
		t.Errorf("no watches: %d, next in %v", n, next)
	}
}

func TestConcurrentSchedulersPollEachRepositoryOnce(t *testing.T) {
	const repos, schedulers = 300, 8
	b := newBench(t)
	var watches []watch.Watch
	for i := range repos {
		watches = append(watches, of(t, "docs", fmt.Sprint("acme/r", i), ""))
	}
	b.put(watches...)
	b.drain()
	for i := range repos {
		b.ago(fmt.Sprint("acme/r", i), time.Hour)
	}
	var done sync.WaitGroup
	for range schedulers {
		done.Go(func() {
			for {
				_, next, err := b.EnqueueDue(context.Background(), 7, 10*time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				if next > 0 {
					return
				}
			}
		})
	}
	done.Wait()
	times, ids := map[string]int{}, map[string]bool{}
	for _, c := range b.changes() {
		times[c.Repo.Key()]++
		ids[c.ID] = true
	}
	for repo, n := range times {
		if n != 1 {
			t.Errorf("%s was polled %d times", repo, n)
		}
	}
	if len(times) != repos || len(ids) != repos {
		t.Errorf("%d repositories were polled with %d IDs, want %d", len(times), len(ids), repos)
	}
	// Their next polls are spread out.
	scores, err := b.client.ZRangeWithScores(context.Background(), pollKey, 0, -1).Result()
	if err != nil || len(scores) != repos {
		t.Fatalf("%d, %v", len(scores), err)
	}
	if spread := scores[repos-1].Score - scores[0].Score; spread < 60_000 {
		t.Errorf("spread over %s ms of 120,000", strconv.FormatFloat(spread, 'f', 0, 64))
	}
}

func TestPendingPollIsNotRepeated(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	b.put(of(t, "docs", "acme/widgets", ""))
	b.drain()
	changes := events.DefaultNamespace.Changes()
	if err := b.client.XGroupCreateMkStream(ctx, changes, events.WorkersGroup, "$").Err(); err != nil {
		t.Fatal(err)
	}
	b.ago("acme/widgets", time.Hour)
	if n, _ := b.enqueueDue(10, time.Minute); n != 1 {
		t.Fatalf("%d polls queued, want 1", n)
	}
	read, err := b.client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: events.WorkersGroup, Consumer: "a", Streams: []string{changes, ">"}}).Result()
	if err != nil {
		t.Fatal(err)
	}
	b.ago("acme/widgets", time.Hour)
	if n, next := b.enqueueDue(10, time.Minute); n != 0 || next < 50*time.Second {
		t.Errorf("%d polls queued, the next in %v, while one is pending", n, next)
	}
	for _, entry := range read[0].Messages {
		b.client.XAck(ctx, changes, events.WorkersGroup, entry.ID)
	}
	b.ago("acme/widgets", time.Hour)
	if n, _ := b.enqueueDue(10, time.Minute); n != 1 {
		t.Errorf("%d polls queued after the last one was settled, want 1", n)
	}
}
