package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const (
	linger      = 15 * time.Second // for which the tail goes on after the last look
	firstWait   = time.Second      // that a page waits for the first results
	recentKept  = 50
	readBytes   = 2 << 20 // of results, about, in one read
	readMost    = 1000    // results in one read
	readLeast   = 10
	backBytes   = 8 << 20 // of results, about, that are read of what came before
	backMost    = 5000
	remeasure   = 10 * time.Second
	tailBlock   = time.Second // that one read waits: for so long the end of the dashboard goes unnoticed
	tailPause   = 100 * time.Millisecond
	tailTimeout = 5 * time.Second
)

// tail follows the stream of results while somebody looks: one reader for all. When there come more than it may
// read it reads the newest, and counts each for several.
type tail struct {
	redis redis.UniversalClient
	topic string
	start func(func(ctx context.Context)) // runs something in the background

	mu      sync.Mutex
	wanted  time.Time // when somebody looked last
	running bool
	ready   chan struct{} // closed once something was read, or failed
	err     error         // of the last read
	window  window
	recent  []settled     // the newest first
	skew    time.Duration // of Redis' clock against ours

	// Of the goroutine that reads.
	last     string    // entry read last; "" before the first read
	added    int64     // entries ever added up to it, as far as Redis knows
	measured time.Time // when Redis was asked for that
	each     float64   // bytes of a result, on average
	spent    time.Duration
}

func newTail(client redis.UniversalClient, topic string) *tail {
	return &tail{redis: client, topic: topic, ready: make(chan struct{}), each: 2048}
}

// pulse is what the tail knows at a moment.
type pulse struct {
	Now    time.Time // by Redis' clock
	Recent []settled
	window *window
}

// look returns what the tail knows, and keeps it following for a while.
func (t *tail) look(ctx context.Context) (pulse, error) {
	t.mu.Lock()
	t.wanted = time.Now()
	if !t.running {
		t.running, t.ready, t.err = true, make(chan struct{}), nil
		t.start(t.follow)
	}
	ready := t.ready
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, firstWait)
	defer cancel()
	select {
	case <-ready:
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return pulse{}, t.err
	}
	w := t.window
	return pulse{Now: time.Now().Add(t.skew), Recent: append([]settled(nil), t.recent...), window: &w}, nil
}

// follow reads what comes until nobody has looked for a while.
func (t *tail) follow(ctx context.Context) {
	t.last = ""
	for {
		t.spent = 0
		err := t.read(ctx)
		pause := max(tailPause, 9*t.spent) // a tenth of a core at most
		if err != nil {
			pause = beat
		}
		t.mu.Lock()
		t.err = err
		select {
		case <-t.ready:
		default:
			close(t.ready)
		}
		if time.Since(t.wanted) > linger || ctx.Err() != nil {
			t.running = false
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// read takes in what has come since the last read; at first, what came before.
func (t *tail) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tailTimeout)
	defer cancel()
	if t.last == "" || time.Since(t.measured) > remeasure {
		newest, added, err := t.measure(ctx)
		if err != nil {
			return fmt.Errorf("measure %s: %w", t.topic, err)
		}
		if t.last == "" || events.EntryAfter(t.last, newest) { // at first, and when Redis has lost what it had
			t.added = added
			return t.back(ctx, newest)
		}
	}
	most, weight := t.most(readBytes, readMost), 1.0
	entries, err := t.await(ctx, most)
	t.added += int64(len(entries))
	if err == nil && int64(len(entries)) == most {
		var added int64
		if _, added, err = t.measure(ctx); err == nil {
			entries, err = t.redis.XRevRangeN(ctx, t.topic, "+", "("+t.last, most).Result()
		}
		slices.Reverse(entries)
		weight = 1 + max(0, float64(added-t.added))/float64(max(1, len(entries)))
		t.added = max(added, t.added)
	}
	if err != nil {
		return fmt.Errorf("follow %s: %w", t.topic, err)
	}
	if len(entries) > 0 {
		t.take(entries, weight)
		t.last = entries[len(entries)-1].ID
	}
	return nil
}

// await returns the next results as soon as there are some, or none after a while.
func (t *tail) await(ctx context.Context, most int64) ([]redis.XMessage, error) {
	read, err := t.redis.XRead(ctx, &redis.XReadArgs{Streams: []string{t.topic, t.last}, Count: most, Block: tailBlock}).Result()
	if errors.Is(err, redis.Nil) || err == nil && len(read) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return read[0].Messages, nil
}

// measure returns the id of the newest entry and how many were ever added, as far as Redis knows, and compares clocks.
func (t *tail) measure(ctx context.Context) (newest string, added int64, err error) {
	asked := time.Now()
	clock, err := t.redis.Time(ctx).Result()
	if err != nil {
		return "", 0, err
	}
	t.mu.Lock()
	t.skew = clock.Sub(asked)
	t.mu.Unlock()
	info, err := t.redis.XInfoStream(ctx, t.topic).Result()
	if err != nil && !strings.Contains(err.Error(), "no such key") { // nothing was ever settled
		return "", 0, err
	}
	t.measured = time.Now()
	if info == nil {
		return "0-0", 0, nil
	}
	return cmp.Or(info.LastGeneratedID, "0-0"), info.EntriesAdded, nil
}

// back begins with what came in the time of a window before now, as much as may be read of it.
func (t *tail) back(ctx context.Context, newest string) error {
	t.mu.Lock()
	now := time.Now().Add(t.skew)
	t.window, t.recent = window{from: now.Add(-span)}, nil
	t.mu.Unlock()
	since, to := strconv.FormatInt(now.Add(-span).UnixMilli(), 10), newest
	var pages [][]settled
	for read, bytes := 0, 0; ; {
		most := t.most(readBytes/4, readMost)
		entries, err := t.redis.XRevRangeN(ctx, t.topic, to, since, most).Result()
		if err != nil {
			return fmt.Errorf("follow %s: %w", t.topic, err)
		}
		page := make([]settled, 0, len(entries))
		for _, e := range entries {
			bytes += weigh(e)
			if s, ok := parseSettled(e); ok {
				page = append(page, s)
			}
			to = "(" + e.ID
		}
		t.learn(entries)
		pages = append(pages, page)
		read += len(entries)
		if int64(len(entries)) < most {
			break
		}
		if read >= backMost || bytes >= backBytes { // the rest stays unknown
			t.mu.Lock()
			t.window.from = events.EntryTime(entries[len(entries)-1].ID)
			t.mu.Unlock()
			break
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(pages) - 1; i >= 0; i-- {
		for n := len(pages[i]) - 1; n >= 0; n-- {
			t.note(pages[i][n], 1)
		}
	}
	t.last = newest
	return nil
}

// take takes in entries, the oldest first, each for so many.
func (t *tail) take(entries []redis.XMessage, weight float64) {
	began := time.Now()
	defer func() { t.spent += time.Since(began) }()
	t.learn(entries)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range entries {
		if s, ok := parseSettled(e); ok {
			t.note(s, weight)
		}
	}
}

func (t *tail) note(s settled, weight float64) {
	t.window.add(s.At, s.kind, s.delay(), weight)
	if s.polled {
		return // nothing came of it
	}
	if len(t.recent) < recentKept {
		t.recent = append(t.recent, settled{})
	}
	copy(t.recent[1:], t.recent)
	t.recent[0] = s
}

// most is how many results come to about so many bytes.
func (t *tail) most(bytes, most float64) int64 {
	return int64(max(readLeast, min(most, bytes/t.each)))
}

// learn keeps the average size of a result, by the last some hundred.
func (t *tail) learn(entries []redis.XMessage) {
	for _, e := range entries {
		t.each += (float64(weigh(e)) - t.each) / 100
	}
}

func weigh(e redis.XMessage) int {
	n := 64
	for name, value := range e.Values {
		text, _ := value.(string)
		n += len(name) + len(text)
	}
	return n
}
