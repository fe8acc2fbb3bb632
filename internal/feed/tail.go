package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sort"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/notify"
)

const (
	keepEntries = 1000    // that the tail keeps
	keepBytes   = 4 << 20 // their size
	batchFrames = 100
	batchBytes  = 256 << 10

	tailBlock = time.Second // maximum duration of a blocking read
	tailPause = 500 * time.Millisecond
)

// entry is a result as it is sent.
type entry struct {
	at       Position
	frame    []byte // the event; nil if nobody gets it
	audience access.Audience
}

func (e entry) isFor(c *client) bool {
	return e.frame != nil && (c.app == "" || e.audience.Has(c.app))
}

// recent has the newest results. Each client reads those after its own position.
type recent struct {
	ready    bool
	from, to Position           // it has all entries after from up to to
	start    Position           // where the tail began
	dropped  map[string]entryID // last entry up to from for an app, "" for the operator, if after start
	entries  []entry
	bytes    int
}

// add appends entries that follow to, the last of which is at the position to.
func (r *recent) add(entries []entry) {
	for _, e := range entries {
		r.entries, r.bytes, r.to = append(r.entries, e), r.bytes+len(e.frame), e.at
	}
	drop := 0
	for len(r.entries)-drop > keepEntries || r.bytes > keepBytes {
		r.drop(r.entries[drop])
		drop++
	}
	if drop > 0 {
		r.entries = append(make([]entry, 0, len(r.entries)-drop+readEntries), r.entries[drop:]...)
	}
}

// drop notes the entry that is dropped next.
func (r *recent) drop(e entry) {
	r.bytes -= len(e.frame)
	r.from = e.at
	if e.frame == nil {
		return
	}
	if r.dropped == nil {
		r.dropped = map[string]entryID{}
	}
	r.dropped[""] = e.at.entry
	for _, app := range e.audience {
		r.dropped[app] = e.at.entry
	}
}

// skip returns the position to continue from: that of a client for which nothing was dropped since moves on with the tail.
func (r *recent) skip(c *client) Position {
	if c.at.epoch == r.from.epoch && c.at.entry.compare(r.start.entry) >= 0 && c.at.entry.compare(r.from.entry) < 0 &&
		r.dropped[c.app].compare(c.at.entry) <= 0 {
		return r.from
	}
	return c.at
}

// next returns the next batch for a client from the results that the tail keeps. ok is false if the client's position is older.
func (f *Feed) next(c *client) (next batch, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &f.recent
	if r.ready {
		c.at = r.skip(c)
	}
	switch {
	case !r.ready: // the tail wakes all clients once it is
		return batch{to: c.at}, true
	case r.from.epoch != c.at.epoch || c.at.entry.compare(r.from.entry) < 0 || c.at.entry.compare(r.to.entry) > 0:
		return batch{}, false
	}
	first := sort.Search(len(r.entries), func(i int) bool { return r.entries[i].at.entry.compare(c.at.entry) > 0 })
	size := 0
	for _, e := range r.entries[first:] {
		if e.isFor(c) {
			next.frames = append(next.frames, e.frame)
			size += len(e.frame)
		}
		if next.to = e.at; len(next.frames) == batchFrames || size >= batchBytes {
			next.more = true
			return next, true
		}
	}
	next.to = r.to
	return next, true
}

// prepare decides who may read entries, which follow the position from, and encodes them.
func (f *Feed) prepare(ctx context.Context, from Position, read page) ([]entry, error) {
	results := make([]events.Result, len(read.entries))
	for i, one := range read.entries {
		result, err := events.ParseResult([]byte(one.payload))
		if err != nil {
			f.cfg.Log.DebugContext(ctx, "result not sent to readers", "entry", one.id.String(), "error", err)
			continue
		}
		results[i] = result
	}
	audiences, err := f.cfg.Audiences(ctx, results, func(r events.Result, err error) {
		f.cfg.Log.ErrorContext(ctx, "result not sent to apps, the watches cannot be decoded", "repo", r.Repo.String(), "result", r.ID, "error", err)
	})
	if err != nil {
		return nil, err
	}
	entries := make([]entry, len(results))
	for i, result := range results {
		at := Position{epoch: read.end.epoch, entry: read.entries[i].id, added: -1}
		if from.added >= 0 {
			at.added = from.added + int64(i) + 1
		}
		if at.entry == read.end.entry {
			at.added = read.end.added
		}
		entries[i] = entry{at: at, audience: audiences[i]}
		if result.Type != "" {
			entries[i].frame = frameOf(at, result)
		}
	}
	return entries, nil
}

// frameOf returns a result as a server-sent event.
func frameOf(at Position, result events.Result) []byte {
	document, err := notify.Document(result)
	if err != nil {
		return nil // impossible: it was parsed from JSON
	}
	return fmt.Appendf(nil, "id: %s\nevent: %s\ndata: %s\n\n", at, KindOf(result.Type), document)
}

// KindOf returns the short form of a type, such as synced.
func KindOf(t events.ResultType) string {
	parts := strings.Split(string(t), ".")
	return parts[max(0, len(parts)-2)]
}

// tail reads the next results and wakes the clients that may read them, or waits for some.
func (f *Feed) tail() error {
	f.mu.Lock()
	ready, from := f.recent.ready, f.recent.to
	f.mu.Unlock()
	at := atEnd
	if ready {
		at = from.Entry()
	}
	ctx, cancel := context.WithTimeout(f.ctx, readTimeout)
	defer cancel()
	read, err := f.readAt(ctx, at, from)
	switch {
	case err != nil:
		return err
	case !ready || read.gone: // clients compare their positions with the stream
		f.mu.Lock()
		f.recent = recent{ready: true, start: read.end, from: read.end, to: read.end}
		f.mu.Unlock()
		for _, c := range f.all() {
			f.wake(c)
		}
		return nil
	case len(read.entries) == 0:
		return f.await(at)
	}
	entries, err := f.prepare(ctx, from, read)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.recent.add(entries)
	f.mu.Unlock()
	for _, c := range f.concerned(entries) {
		f.wake(c)
	}
	return nil
}

// await waits for an entry after the one given, for a second at most.
func (f *Feed) await(after string) error {
	err := f.cfg.Reader.XRead(f.ctx, &redis.XReadArgs{Streams: []string{f.results, after}, Count: 1, Block: tailBlock}).Err()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// concerned returns the clients that get one of entries.
func (f *Feed) concerned(entries []entry) (list []*client) {
	apps := map[string]bool{"": true}
	for _, e := range entries {
		for _, app := range e.audience {
			apps[app] = true
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for app := range apps {
		for c := range f.groups[app] {
			list = append(list, c)
		}
	}
	return list
}

// outage logs the start and the end of an outage. It is not safe for concurrent use.
type outage struct {
	log   *slog.Logger
	began bool
}

func (o *outage) report(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case err != nil && !o.began:
		o.began = true
		o.log.WarnContext(ctx, "streams of results paused, will retry", "error", err)
	case err == nil && o.began:
		o.began = false
		o.log.InfoContext(ctx, "streams of results resumed")
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
