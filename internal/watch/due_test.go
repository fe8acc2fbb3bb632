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

func (b *bench) takeDue(limit int, usual time.Duration) (int, time.Duration) {
	b.t.Helper()
	n, next, err := b.TakeDue(context.Background(), limit, usual)
	if err != nil {
		b.t.Fatal(err)
	}
	return n, next
}

// ago makes Redis believe that a look at the repository's remote was last asked for so long ago, and is due.
func (b *bench) ago(key string, d time.Duration) {
	b.t.Helper()
	ctx := context.Background()
	now := b.client.Time(ctx).Val()
	b.client.HSet(ctx, ofKey+key, "asked", now.Add(-d).UnixMilli())
	if err := b.client.ZAdd(ctx, pollKey, redis.Z{Score: float64(now.Add(-time.Millisecond).UnixMilli()), Member: key}).Err(); err != nil {
		b.t.Fatal(err)
	}
}

func TestWhatIsDueIsAskedForOnceAnInterval(t *testing.T) {
	b := newBench(t)
	b.put(of(t, "docs", "Acme/Widgets", ""), of(t, "docs", "acme/gadgets", ""))
	b.asked()
	if n, next := b.takeDue(10, time.Minute); n != 0 || next < 53*time.Second || next > 66*time.Second {
		t.Errorf("just put, and looked at: %d, next in %v", n, next)
	}
	b.ago("acme/widgets", 53*time.Second)
	if n, _ := b.takeDue(10, time.Minute); n != 0 {
		t.Error("asked for again within nine tenths of the interval")
	}
	b.ago("acme/widgets", 55*time.Second)
	n, next := b.takeDue(10, time.Minute)
	if again, _ := b.takeDue(10, time.Minute); n != 1 || again != 0 || next <= 50*time.Second {
		t.Errorf("%d, %d, next in %v", n, again, next)
	}
	// A set that is written without a look being asked for is put down for now, and put off.
	if err := b.Silence(context.Background(), of(t, "docs", "acme/widgets", ""), "gone"); err != nil {
		t.Fatal(err)
	}
	if again, next := b.takeDue(10, time.Minute); again != 0 || next <= 50*time.Second {
		t.Errorf("written just after it was polled: %d, next in %v", again, next)
	}
	changes := b.changes()
	if len(changes) != 1 || changes[0].Type != events.ChangeDue || changes[0].Repo.String() != "Acme/Widgets" || changes[0].OnBusy != events.BusySkip || changes[0].ID[:5] != "poll/" {
		t.Errorf("%+v", changes)
	}
}

func TestTheShortestIntervalOfAllWatchesCounts(t *testing.T) {
	const hour = watch.Interval(time.Hour)
	for name, tc := range map[string]struct {
		polls []watch.Interval
		usual time.Duration
		want  time.Duration // 0: never
	}{
		"the setting":                   {[]watch.Interval{0}, 10 * time.Minute, 10 * time.Minute},
		"one that is named":             {[]watch.Interval{hour}, time.Minute, time.Hour},
		"the shorter of two":            {[]watch.Interval{2 * hour, hour}, time.Minute, time.Hour},
		"the setting, if that is less":  {[]watch.Interval{hour, 0}, time.Minute, time.Minute},
		"one named, if that is less":    {[]watch.Interval{hour, 0}, 2 * time.Hour, time.Hour},
		"never":                         {[]watch.Interval{watch.Never}, time.Minute, 0},
		"never, and an hour":            {[]watch.Interval{watch.Never, hour}, time.Minute, time.Hour},
		"never, and the setting":        {[]watch.Interval{watch.Never, 0}, time.Minute, time.Minute},
		"the setting is not to poll":    {[]watch.Interval{0}, 0, 0},
		"not to poll, and one is named": {[]watch.Interval{0, hour}, 0, time.Hour},
	} {
		b := newBench(t)
		var watches []watch.Watch
		for i, poll := range tc.polls {
			w := of(t, fmt.Sprint("app", i), "acme/widgets", "")
			w.Poll = poll
			watches = append(watches, w)
		}
		b.put(watches...)
		b.asked()
		b.takeDue(10, tc.usual) // puts it down for its interval
		if _, polled := b.client.ZScore(context.Background(), pollKey, "acme/widgets").Result(); polled != nil {
			if tc.want != 0 {
				t.Errorf("%s: is not polled", name)
			}
			continue
		}
		b.ago("acme/widgets", 365*24*time.Hour)
		n, next := b.takeDue(10, tc.usual)
		if tc.want == 0 {
			if n != 0 || next < 50*time.Minute {
				t.Errorf("%s: %d asked for, next in %v", name, n, next)
			}
			continue
		}
		if low, high := tc.want*89/100, tc.want*111/100; n != 1 || next < low || next > high {
			t.Errorf("%s: %d asked for, next in %v, want about %v", name, n, next, tc.want)
		}
	}
}

func TestAPollThatWasLostComesBack(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	b.put(of(t, "docs", "acme/widgets", ""), of(t, "docs", "acme/gadgets", ""), of(t, "docs", "acme/spoilt", ""))
	b.asked()
	// The clock of Redis was set back; a set that nobody keeps; a key of somebody else's.
	b.ago("acme/widgets", -24*time.Hour)
	b.client.ZAdd(ctx, pollKey, redis.Z{Member: "acme/gone"})
	b.client.Del(ctx, ofKey+"acme/spoilt")
	b.client.Set(ctx, ofKey+"acme/spoilt", "mine", 0)
	if n, next := b.takeDue(10, time.Minute); n != 1 || next <= 50*time.Second {
		t.Errorf("%d asked for, next in %v", n, next)
	}
	if asked := b.asked(); !slices.Equal(asked, []string{"due acme/widgets"}) {
		t.Errorf("%q", asked)
	}
	if left := b.client.ZRange(ctx, pollKey, 0, -1).Val(); !slices.Equal(left, []string{"acme/gadgets", "acme/widgets"}) && !slices.Equal(left, []string{"acme/widgets", "acme/gadgets"}) {
		t.Errorf("left: %q", left)
	}
	empty := newBench(t)
	if n, next := empty.takeDue(10, time.Minute); n != 0 || next != 30*24*time.Hour {
		t.Errorf("nothing is watched: %d, next in %v", n, next)
	}
}

func TestManySchedulersAskForEachRepositoryOnce(t *testing.T) {
	const repos, schedulers = 300, 8
	b := newBench(t)
	var watches []watch.Watch
	for i := range repos {
		watches = append(watches, of(t, "docs", fmt.Sprint("acme/r", i), ""))
	}
	b.put(watches...)
	b.asked()
	for i := range repos {
		b.ago(fmt.Sprint("acme/r", i), time.Hour)
	}
	var done sync.WaitGroup
	for range schedulers {
		done.Go(func() {
			for {
				_, next, err := b.TakeDue(context.Background(), 7, 10*time.Minute)
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
			t.Errorf("%s was asked for %d times", repo, n)
		}
	}
	if len(times) != repos || len(ids) != repos {
		t.Errorf("%d repositories were asked for with %d ids, want %d", len(times), len(ids), repos)
	}
	// They do not come due together again.
	scores, err := b.client.ZRangeWithScores(context.Background(), pollKey, 0, -1).Result()
	if err != nil || len(scores) != repos {
		t.Fatalf("%d, %v", len(scores), err)
	}
	if spread := scores[repos-1].Score - scores[0].Score; spread < 60_000 {
		t.Errorf("spread over %s ms of 120,000", strconv.FormatFloat(spread, 'f', 0, 64))
	}
}
