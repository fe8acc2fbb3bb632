package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
)

const (
	recentKept  = 1000
	tailPause   = 250 * time.Millisecond // between reads, at least
	tailResults = 5000                   // results of one read
	tailBytes   = 8 << 20                // their approximate size
	tailLimit   = 2 * time.Second        // how long one read takes results
	tailTimeout = 5 * time.Second        // of one read
)

// tail has the results of the last span, for all pages. Pages that show them read what is new. If that is more than
// one read takes, it begins anew with the newest results.
type tail struct {
	redis redis.UniversalClient
	topic string

	mu     sync.Mutex
	next   time.Time // when the next read may start
	err    error     // of the last read
	last   string    // ID of the last entry read; "" before the first one
	window window
	recent []settled     // oldest first; the last recentKept count
	skew   time.Duration // Redis' clock minus ours
}

func newTail(client redis.UniversalClient, topic string) *tail {
	return &tail{redis: client, topic: topic}
}

type snapshot struct {
	Now    time.Time // by Redis' clock
	Recent []settled // newest first, at most recentKept
	window *window
}

// snapshot returns the results of the last span, as of the last read, or the error of that.
func (t *tail) snapshot(ctx context.Context) (snapshot, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if start := time.Now(); start.After(t.next) {
		t.err = t.read(context.WithoutCancel(ctx)) // other pages wait for it, too
		end := time.Now()
		t.next = end.Add(max(tailPause, 9*end.Sub(start))) // use at most a tenth of a core
	}
	if t.err != nil {
		return snapshot{}, t.err
	}
	w := t.window
	recent := slices.Clone(t.recent[max(0, len(t.recent)-recentKept):])
	slices.Reverse(recent)
	return snapshot{Now: time.Now().Add(t.skew), Recent: recent, window: &w}, nil
}

// read adds the results since the last read. The first read, and the first after Redis lost its data, begin anew with
// those of the last span.
func (t *tail) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tailTimeout)
	defer cancel()
	start := time.Now()
	now, err := stream.Time(ctx, t.redis, t.topic)
	if err != nil {
		return fmt.Errorf("follow %s: %w", t.topic, err)
	}
	from := now.Add(-span)
	since := strconv.FormatInt(from.UnixMilli(), 10)
	if !events.EntryTime(t.last).Before(from) {
		since = t.last
	}
	var found []settled // newest first
	newest, reached, read, bytes := "", false, 0, 0
	for e, err := range stream.NewReader(t.redis).Backward(ctx, t.topic, "+", since) {
		if err != nil {
			return fmt.Errorf("follow: %w", err)
		}
		if reached = e.ID == t.last; reached {
			break
		}
		newest = cmp.Or(newest, e.ID)
		read, bytes = read+1, bytes+stream.Size(e)
		r, err := changes.ParseResult(e)
		if s, ok := settledOf(e.ID, r); ok && err == nil {
			found = append(found, s)
		}
		if read == tailResults || bytes >= tailBytes || time.Since(start) >= tailLimit {
			from = events.EntryTime(e.ID) // older results stay unknown
			t.last = ""
			break
		}
	}
	if since == t.last && !reached {
		t.last = ""
		return t.read(ctx)
	}
	if !reached {
		t.window, t.recent = window{from: from}, nil
	}
	for _, s := range slices.Backward(found) {
		t.add(s)
	}
	t.last, t.skew = cmp.Or(newest, t.last), now.Sub(start)
	return nil
}

func (t *tail) add(s settled) {
	t.window.add(s.At, s.kind, s.delay())
	if s.polled {
		return // the poll found no changes
	}
	if t.recent = append(t.recent, s); len(t.recent) >= 2*recentKept {
		t.recent = append([]settled(nil), t.recent[recentKept:]...)
	}
}
