package dashboard

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// follower is a tail with a private Redis that reads only when the test calls read.
type follower struct {
	*desk
	tail *tail
}

func newFollower(t *testing.T) *follower {
	t.Helper()
	d := &desk{t: t, redis: redistest.Start(t)}
	d.client = d.redis.Client()
	return &follower{d, newTail(d.client, events.DefaultNamespace.Results())}
}

func (f *follower) read() {
	f.t.Helper()
	testenv.Must(0, f.tail.read(f.t.Context()))(f.t)
}

func (f *follower) total() bucket {
	f.tail.mu.Lock()
	defer f.tail.mu.Unlock()
	return f.tail.window.total(time.Now().Add(f.tail.skew), span)
}

func TestTailLoadsHistoryAndFollows(t *testing.T) {
	t.Parallel()
	f := newFollower(t)
	f.read() // of an empty stream
	if n := f.total(); n.all() != 0 {
		t.Errorf("%v results in an empty stream", n.counts)
	}
	f.settle(synced(t, "acme/one"), 50*time.Millisecond)
	f.read()
	unchanged := synced(t, "acme/two")
	unchanged.Before = unchanged.After
	f.settle(unchanged, time.Second)
	failed := synced(t, "acme/three")
	failed.Type, failed.Class, failed.Error = events.ResultFailed, events.ClassBusy, "no"
	f.settle(failed, time.Minute)
	polled := synced(t, "acme/four")
	polled.Type = events.ResultPolled
	f.settle(polled, time.Hour)
	view := synced(t, "acme/one")
	view.Type, view.View = events.ResultView, "api"
	f.settle(view, time.Hour)
	f.client.XAdd(t.Context(), &redis.XAddArgs{Stream: f.tail.topic, Values: []string{"payload", "{no result"}})
	f.read()
	check := func(tail *tail) {
		t.Helper()
		n := tail.window.total(time.Now(), span)
		if n.counts != [outcomes]int64{1, 1, 1, 1} {
			t.Errorf("counts %v, want one of each", n.counts)
		}
		var shown []string
		for _, s := range tail.recent {
			shown = append(shown, s.Outcome+" "+s.Repo)
		}
		if got := strings.Join(shown, ", "); got != "synced acme/one, unchanged acme/two, failed acme/three" {
			t.Errorf("shown %s", got)
		}
		if most, ok := n.quantile(1); !ok || most > 70*time.Second { // polls do not count
			t.Errorf("the maximum latency is %v", most)
		}
	}
	check(f.tail)
	other := newTail(f.client, f.tail.topic)
	testenv.Must(0, other.read(t.Context()))(t)
	check(other)
}

func TestHistoryIsLimitedByBytes(t *testing.T) {
	t.Parallel()
	f := newFollower(t)
	big := synced(t, "acme/big")
	for i := range 100 {
		big.Files = append(big.Files, events.File{Path: fmt.Sprintf("folder/file-%d-%s", i, strings.Repeat("x", 4000)), Status: events.FileAdded})
	}
	const many = 60 // of 400 KB each
	for range many {
		f.settle(big, time.Millisecond)
	}
	start := time.Now()
	f.read()
	n := f.total()
	if n.all() >= many || n.all() < 10 {
		t.Errorf("read %v results of %d, want about %d bytes of them", n.all(), many, tailBytes)
	}
	if !f.tail.window.from.After(start.Add(-span / 2)) {
		t.Errorf("results are known from %v on, want less than half of the window", f.tail.window.from)
	}
	for range many {
		f.settle(big, time.Millisecond)
	}
	f.read()
	if n := f.total(); n.all() >= many || n.all() < 10 {
		t.Errorf("with more than one read takes since: %v results, want the newest", n.all())
	}
}

func TestTailRestartsAfterRedisLostItsData(t *testing.T) {
	t.Parallel()
	f := newFollower(t)
	for range 5 {
		f.settle(synced(t, "acme/one"), time.Millisecond)
	}
	f.read()
	testenv.Must(0, f.client.FlushAll(context.Background()).Err())(t)
	f.client.XAdd(t.Context(), &redis.XAddArgs{Stream: f.tail.topic, ID: "5-0", Values: []string{"payload", "x"}})
	f.read()
	f.settle(synced(t, "acme/one"), time.Millisecond)
	f.read()
	if n := f.total(); n.all() != 1 {
		t.Errorf("counted %v, want a restart from the new data", n.all())
	}
}

func TestPercentileAccuracy(t *testing.T) {
	var w window
	now := time.Now()
	for ms := 1; ms <= 10_000; ms++ {
		w.add(now, outSynced, time.Duration(ms)*time.Millisecond)
	}
	all := w.total(now, time.Minute)
	for q, want := range map[float64]float64{0.5: 5000, 0.95: 9500, 0.99: 9900} {
		d, ok := all.quantile(q)
		if ms := float64(d.Milliseconds()); !ok || ms < want*0.92 || ms > want*1.08 {
			t.Errorf("p%v is %v, want about %v ms", q*100, d, want)
		}
	}
	if _, ok := new(bucket).quantile(0.5); ok {
		t.Error("an empty bucket has a median")
	}
	w.add(now, outSynced, 1000*time.Hour) // counted in the last bin
	w.add(now, outFailed, -1)             // unknown latency
	if n := w.total(now, time.Minute); n.counts[outFailed] != 1 {
		t.Error("a result without a latency is not counted")
	}
}

func TestWindowDropsOldResults(t *testing.T) {
	var w window
	begin := time.Unix(1_800_000_000, 0)
	for i := range 2 * steps {
		w.add(begin.Add(time.Duration(i)*step), outSynced, time.Millisecond)
	}
	w.add(begin, outSynced, time.Millisecond) // too old
	now := begin.Add((2*steps - 1) * step)
	if n := w.total(now, span); n.all() != steps {
		t.Errorf("%v results in the last 15 min, want %d", n.all(), steps)
	}
	if n := w.total(now, time.Minute); n.all() != 12 {
		t.Errorf("%v results in the last minute, want 12", n.all())
	}
	s := w.series(now.Add(-span), now)
	if len(s.At) < steps-2 || len(s.At) > steps || len(s.Counts[outSynced]) != len(s.At) || *s.Delays[0][0] != 1 {
		t.Errorf("%d buckets: %+v", len(s.At), s)
	}
}

func TestRateCoversOnlyTheKnownTime(t *testing.T) {
	now := time.Unix(1_800_000_003, 0) // 3 s into a bucket
	for name, known := range map[string]time.Duration{
		"the last 15 min": span, "the last 20 s": 20 * time.Second, "the last 2 s": 2 * time.Second,
	} {
		w := window{from: now.Add(-known)}
		for at := w.from; at.Before(now); at = at.Add(100 * time.Millisecond) { // 600 per minute
			w.add(at, outSynced, time.Millisecond)
		}
		if rate := w.perMinute(now); rate < 590 || rate > 610 {
			t.Errorf("%s: %.0f per minute, want 600", name, rate)
		}
	}
	if rate := new(window).perMinute(now); rate != 0 {
		t.Errorf("%v per minute in an empty window", rate)
	}
}
