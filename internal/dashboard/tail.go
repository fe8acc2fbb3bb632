package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
)

const (
	oldAfter    = 5 * time.Second // after which results are read before a page shows them
	firstWait   = time.Second     // how long a page waits for that
	recentKept  = 1000
	tailPause   = 250 * time.Millisecond // between reads, at least
	tailResults = 5000                   // results of one read
	tailBytes   = 8 << 20                // their approximate size
	tailLimit   = 2 * time.Second        // how long one read takes results
	tailTimeout = 5 * time.Second        // of one read
)

// tail has the results of the last span, for all pages. Pages that show them start the next read, in the background.
// It reads the newest results first. If it falls behind, it leaves out the others and weights those that it has to
// account for them.
type tail struct {
	redis redis.UniversalClient
	topic string
	start func(func(ctx context.Context)) // runs a function in the background

	mu      sync.Mutex
	reading chan struct{} // closed at the end of the current read; nil if there is none
	readAt  time.Time     // end of the last read
	next    time.Time     // when the next read may start
	err     error         // of the last read
	window  window
	recent  []settled     // oldest first; the last recentKept count
	skew    time.Duration // Redis' clock minus ours

	// Used only by the current read.
	last  string // ID of the last entry read; "" before the first read
	added int64  // entries ever added up to last, according to Redis
	limit int    // tailResults, or less in tests
}

func newTail(client redis.UniversalClient, topic string) *tail {
	return &tail{redis: client, topic: topic, limit: tailResults}
}

type snapshot struct {
	Now    time.Time // by Redis' clock
	Recent []settled // newest first, at most recentKept
	window *window
}

// snapshot returns the results read so far, and starts a read. It waits up to firstWait for that read if the results
// are old. It returns the error of the last read, if that failed.
func (t *tail) snapshot(ctx context.Context) (snapshot, error) {
	t.mu.Lock()
	if t.reading == nil && time.Now().After(t.next) {
		t.reading = make(chan struct{})
		t.start(t.refresh)
	}
	reading, isOld := t.reading, time.Since(t.readAt) > oldAfter
	t.mu.Unlock()
	if reading != nil && isOld {
		ctx, cancel := context.WithTimeout(ctx, firstWait)
		defer cancel()
		select {
		case <-reading:
		case <-ctx.Done():
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return snapshot{}, t.err
	}
	w := t.window
	recent := slices.Clone(t.recent[max(0, len(t.recent)-recentKept):])
	slices.Reverse(recent)
	return snapshot{Now: time.Now().Add(t.skew), Recent: recent, window: &w}, nil
}

// refresh reads new results, anew if those known are old: weights would be wrong for a long time.
func (t *tail) refresh(ctx context.Context) {
	start := time.Now()
	if start.Sub(t.readAt) > oldAfter {
		t.last = ""
	}
	err := t.read(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	end := time.Now()
	if t.err = err; err == nil {
		t.readAt = end
	}
	t.next = end.Add(max(tailPause, 9*end.Sub(start))) // use at most a tenth of a core
	close(t.reading)
	t.reading = nil
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
	info, err := t.redis.XInfoStream(ctx, t.topic).Result()
	switch {
	case err != nil && !strings.Contains(err.Error(), "no such key"):
		return fmt.Errorf("follow %s: %w", t.topic, err)
	case info == nil: // there are no results yet
		info = &redis.XInfoStream{}
	}
	newest, since := cmp.Or(info.LastGeneratedID, "0-0"), "("+t.last
	anew := t.last == "" || events.EntryAfter(t.last, newest)
	if anew {
		since = strconv.FormatInt(now.Add(-span).UnixMilli(), 10)
	}
	var found []settled // newest first
	read, bytes, oldest := 0, 0, ""
	for e, err := range stream.NewReader(t.redis).Backward(ctx, t.topic, newest, since) {
		if err != nil {
			return fmt.Errorf("follow: %w", err)
		}
		read, bytes = read+1, bytes+stream.Size(e)
		r, err := changes.ParseResult(e)
		if s, ok := settledOf(e.ID, r); ok && err == nil {
			found = append(found, s)
		}
		if read == t.limit || bytes >= tailBytes || time.Since(start) >= tailLimit {
			oldest = e.ID
			break
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.skew = now.Sub(start)
	weight := 1.0
	switch {
	case anew:
		t.window, t.recent = window{from: now.Add(-span)}, nil
		if oldest != "" { // older results stay unknown
			t.window.from = events.EntryTime(oldest)
		}
	case oldest != "":
		weight = max(1, float64(info.EntriesAdded-t.added)/float64(read))
	}
	for _, s := range slices.Backward(found) {
		t.add(s, weight)
	}
	t.last, t.added = newest, info.EntriesAdded
	return nil
}

func (t *tail) add(s settled, weight float64) {
	t.window.add(s.At, s.kind, s.delay(), weight)
	if s.polled {
		return // the poll found no changes
	}
	if t.recent = append(t.recent, s); len(t.recent) >= 2*recentKept {
		t.recent = append([]settled(nil), t.recent[recentKept:]...)
	}
}
