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
	"lockstep/events/stream"
)

const (
	idleTimeout     = 15 * time.Second // after the last snapshot, the tail stops
	firstWait       = time.Second      // maximum wait of a page for the first results
	recentKept      = 1000
	readBytes       = 2 << 20 // approximate limit of one read
	readMaxResults  = 1000
	readMinResults  = 10
	historyBytes    = 8 << 20 // approximate limit of the history read at the start
	historyResults  = 5000
	measureInterval = 10 * time.Second
	tailBlock       = time.Second // how long XREAD blocks, and therefore how long a shutdown may take
	tailPause       = 100 * time.Millisecond
	tailTimeout     = 5 * time.Second
	historyTimeout  = 2 * time.Second // after which no older part of the history is read
)

// tail follows the results stream while pages need it, with one reader for all pages. If it falls behind, it reads
// only the newest results and weights them to account for the skipped ones.
type tail struct {
	redis redis.UniversalClient
	topic string
	start func(func(ctx context.Context)) // runs a function in the background

	mu       sync.Mutex
	lastUsed time.Time // time of the last snapshot
	running  bool
	ready    chan struct{} // closed after the first read, even a failed one
	err      error         // of the last read
	window   window
	recent   []settled     // oldest first; the last recentKept count
	skew     time.Duration // Redis' clock minus ours

	// Used only by the reading goroutine.
	last        string    // ID of the last entry read; "" before the first read
	added       int64     // entries ever added up to last, according to Redis
	measured    time.Time // time of the last call to measure
	averageSize float64   // bytes per result
	spent       time.Duration
}

func newTail(client redis.UniversalClient, topic string) *tail {
	return &tail{redis: client, topic: topic, ready: make(chan struct{}), averageSize: 2048}
}

type snapshot struct {
	Now    time.Time // by Redis' clock
	Recent []settled // newest first, at most recentKept
	window *window
}

// snapshot returns the results known so far and keeps the tail running for idleTimeout. It starts the tail if needed
// and then waits up to firstWait for the first results. It returns the error of the last read, if that failed.
func (t *tail) snapshot(ctx context.Context) (snapshot, error) {
	t.mu.Lock()
	t.lastUsed = time.Now()
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
		return snapshot{}, t.err
	}
	w := t.window
	recent := slices.Clone(t.recent[max(0, len(t.recent)-recentKept):])
	slices.Reverse(recent)
	return snapshot{Now: time.Now().Add(t.skew), Recent: recent, window: &w}, nil
}

// follow reads new results until ctx is done or no snapshot has been taken for idleTimeout.
func (t *tail) follow(ctx context.Context) {
	t.last = ""
	for {
		t.spent = 0
		err := t.read(ctx)
		pause := max(tailPause, 9*t.spent) // use at most a tenth of a core
		if err != nil {
			pause = refreshEvery
		}
		t.mu.Lock()
		t.err = err
		select {
		case <-t.ready:
		default:
			close(t.ready)
		}
		if time.Since(t.lastUsed) > idleTimeout || ctx.Err() != nil {
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

// read adds the results since the last read. The first read loads the history instead.
func (t *tail) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tailTimeout)
	defer cancel()
	if t.last == "" || time.Since(t.measured) > measureInterval {
		newest, added, err := t.measure(ctx)
		if err != nil {
			return fmt.Errorf("measure %s: %w", t.topic, err)
		}
		if t.last == "" || events.EntryAfter(t.last, newest) { // the first read, or Redis lost its data
			t.added = added
			return t.loadHistory(ctx, newest)
		}
	}
	limit, weight := t.batchSize(readBytes, readMaxResults), 1.0
	entries, err := t.await(ctx, limit)
	if err != nil {
		return fmt.Errorf("follow %s: %w", t.topic, err)
	}
	t.added += int64(len(entries))
	if int64(len(entries)) == limit {
		_, added, err := t.measure(ctx)
		if err != nil {
			return fmt.Errorf("follow %s: %w", t.topic, err)
		}
		entries, err = t.redis.XRevRangeN(ctx, t.topic, "+", "("+t.last, limit).Result()
		if err != nil {
			return fmt.Errorf("follow %s: %w", t.topic, err)
		}
		slices.Reverse(entries)
		weight = 1 + max(0, float64(added-t.added))/float64(max(1, len(entries)))
		t.added = max(added, t.added)
	}
	if len(entries) > 0 {
		t.addEntries(entries, weight)
		t.last = entries[len(entries)-1].ID
	}
	return nil
}

// await returns the next results, or none if none arrive within tailBlock.
func (t *tail) await(ctx context.Context, limit int64) ([]redis.XMessage, error) {
	read, err := t.redis.XRead(ctx, &redis.XReadArgs{
		Streams: []string{t.topic, t.last}, Count: limit, Block: tailBlock,
	}).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil || len(read) == 0 {
		return nil, err
	}
	return read[0].Messages, nil
}

// measure returns the ID of the newest entry and the number of entries ever added, and updates the clock skew.
func (t *tail) measure(ctx context.Context) (newest string, added int64, err error) {
	local := time.Now()
	clock, err := stream.Time(ctx, t.redis, t.topic)
	if err != nil {
		return "", 0, err
	}
	t.mu.Lock()
	t.skew = clock.Sub(local)
	t.mu.Unlock()
	info, err := t.redis.XInfoStream(ctx, t.topic).Result()
	if err != nil && !strings.Contains(err.Error(), "no such key") { // there are no results yet
		return "", 0, err
	}
	t.measured = time.Now()
	if info == nil {
		return "0-0", 0, nil
	}
	return cmp.Or(info.LastGeneratedID, "0-0"), info.EntriesAdded, nil
}

// loadHistory resets the tail and loads the results of the last span, the newest first, up to the limits of
// number, bytes and time.
func (t *tail) loadHistory(ctx context.Context, newest string) error {
	t.mu.Lock()
	now := time.Now().Add(t.skew)
	t.window, t.recent = window{from: now.Add(-span)}, nil
	t.mu.Unlock()
	since, to := strconv.FormatInt(now.Add(-span).UnixMilli(), 10), newest
	var pages [][]settled
	for read, bytes, start := 0, 0, time.Now(); ; {
		limit := t.batchSize(readBytes/4, readMaxResults)
		entries, err := t.redis.XRevRangeN(ctx, t.topic, to, since, limit).Result()
		if err != nil {
			return fmt.Errorf("follow %s: %w", t.topic, err)
		}
		page := make([]settled, 0, len(entries))
		for _, e := range entries {
			bytes += entrySize(e)
			if s, ok := parseSettled(e); ok {
				page = append(page, s)
			}
			to = "(" + e.ID
		}
		t.updateAverageSize(entries)
		pages = append(pages, page)
		read += len(entries)
		if int64(len(entries)) < limit {
			break
		}
		// older results stay unknown
		if read >= historyResults || bytes >= historyBytes || time.Since(start) >= historyTimeout {
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
			t.add(pages[i][n], 1)
		}
	}
	t.last = newest
	return nil
}

// addEntries adds entries in stream order, each counted weight times.
func (t *tail) addEntries(entries []redis.XMessage, weight float64) {
	start := time.Now()
	defer func() { t.spent += time.Since(start) }()
	t.updateAverageSize(entries)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range entries {
		if s, ok := parseSettled(e); ok {
			t.add(s, weight)
		}
	}
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

// batchSize returns how many results to read for about the given number of bytes, at least readMinResults.
func (t *tail) batchSize(bytes, limit float64) int64 {
	return int64(max(readMinResults, min(limit, bytes/t.averageSize)))
}

// updateAverageSize maintains a moving average over roughly the last hundred results.
func (t *tail) updateAverageSize(entries []redis.XMessage) {
	for _, e := range entries {
		t.averageSize += (float64(entrySize(e)) - t.averageSize) / 100
	}
}

func entrySize(e redis.XMessage) int {
	n := 64
	for name, value := range e.Values {
		text, _ := value.(string)
		n += len(name) + len(text)
	}
	return n
}
