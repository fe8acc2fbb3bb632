package feed

import (
	"context"
	"fmt"
	"log/slog"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/access"
	"lockstep/internal/notify"
	"lockstep/internal/redisx"
)

const (
	keepEntries = 1000    // that the tail keeps
	keepBytes   = 4 << 20 // their size
	batchFrames = 100
	batchBytes  = 256 << 10

	tailPause = 500 * time.Millisecond
)

// Source is a cell whose results are sent.
type Source struct {
	Cell      string           // "" for a deployment without cells
	Namespace events.Namespace // of its keys

	// Audiences returns for each result the apps that may read it. [access.Reader.Audiences] implements it.
	Audiences func(
		ctx context.Context, results []events.Result, failed func(events.Result, error),
	) ([]access.Audience, error)
}

// source is a source that is tailed.
type source struct {
	Source
	feed              *Feed
	results, epochKey string

	ctx    context.Context // done when the source is tailed no longer
	cancel context.CancelFunc
	down   atomic.Bool // Redis does not answer

	renewals singleflight.Group // of renew

	recent recent // guarded by [Feed.mu]
}

func (f *Feed) source(of Source) *source {
	results := of.Namespace.Results()
	return &source{Source: of, feed: f, results: results, epochKey: results + ":epoch"}
}

// is reports whether s is the source of a cell.
func (s *source) is(of Source) bool { return s.Cell == of.Cell && s.Namespace == of.Namespace }

// entry is a result as it is sent.
type entry struct {
	at       position
	id       []byte        // the line with the cursor, if there is one source; nil if each client has its own
	frame    []byte        // the event without that line; nil if nobody gets it
	result   events.Result // without its files; the zero value if frame is nil
	audience access.Audience
	decided  time.Time // when the audience was
}

func (e entry) isFor(c *client) bool {
	return e.frame != nil && (c.app == "" || e.audience.Has(c.app))
}

// recent has the newest results. Each client reads those after its own position.
type recent struct {
	ready    bool
	from, to position           // it has all entries after from up to to
	start    position           // where the tail began
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

// skip returns the position to continue from: that of a client for which nothing was dropped since moves on
// with the tail.
func (r *recent) skip(at position, app string) position {
	if at.epoch == r.from.epoch && at.entry.compare(r.start.entry) >= 0 && at.entry.compare(r.from.entry) < 0 &&
		r.dropped[app].compare(at.entry) <= 0 {
		return r.from
	}
	return at
}

// next returns the next batch for a client from the results that the tail keeps. ok is false if the client's
// position is older, or, with outdated, if it was decided a while ago that the client may read one of them:
// its watch may have been removed since.
func (s *source) next(c *client, at position) (next batch, outdated, ok bool) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	r := &s.recent
	if r.ready {
		at = r.skip(at, c.app)
	}
	switch {
	case !r.ready: // the tail wakes all clients once it is
		return batch{to: at, waits: true}, false, true
	case r.from.epoch != at.epoch || at.entry.compare(r.from.entry) < 0 || at.entry.compare(r.to.entry) > 0:
		return batch{}, false, false
	}
	first := sort.Search(len(r.entries), func(i int) bool { return r.entries[i].at.entry.compare(at.entry) > 0 })
	next.to = at
	for _, e := range r.entries[first:] {
		if c.app != "" && e.isFor(c) && time.Since(e.decided) > s.feed.cfg.Check {
			next.more = len(next.entries) > 0
			return next, !next.more, next.more
		}
		if next.add(c, e); next.more {
			return next, false, true
		}
	}
	next.to = r.to
	return next, false, true
}

// renew decides again who may read the entries after a position that were decided a while ago. Clients that
// call it meanwhile share the call.
func (s *source) renew(after position) error {
	_, err, _ := s.renewals.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(s.ctx, readTimeout)
		defer cancel()
		var outdated []entry
		var results []events.Result
		s.feed.mu.Lock()
		for _, e := range s.recent.entries {
			if e.frame != nil && e.at.entry.compare(after.entry) > 0 && time.Since(e.decided) > s.feed.cfg.Check {
				outdated, results = append(outdated, e), append(results, e.result)
			}
		}
		s.feed.mu.Unlock()
		decided := time.Now()
		audiences, err := s.audiences(ctx, results)
		if err != nil {
			return nil, err
		}
		s.feed.mu.Lock()
		defer s.feed.mu.Unlock()
		entries := s.recent.entries
		for i, e := range outdated {
			n := sort.Search(len(entries), func(n int) bool { return entries[n].at.entry.compare(e.at.entry) >= 0 })
			if n < len(entries) && entries[n].at == e.at {
				entries[n].audience, entries[n].decided = audiences[i], decided
			}
		}
		return nil, nil
	})
	return err
}

// audiences decides who may read results.
func (s *source) audiences(ctx context.Context, results []events.Result) ([]access.Audience, error) {
	return s.Audiences(ctx, results, func(r events.Result, err error) {
		s.feed.cfg.Log.ErrorContext(ctx, "result not sent to apps, the watches cannot be decoded",
			"repo", r.Repo.String(), "result", r.ID, "error", err)
	})
}

// prepare decides who may read entries, which follow the position from, and encodes them.
func (s *source) prepare(ctx context.Context, from position, read page) ([]entry, error) {
	results := make([]events.Result, len(read.entries))
	for i, one := range read.entries {
		result, err := events.ParseResult([]byte(one.payload))
		if err != nil {
			s.feed.cfg.Log.DebugContext(ctx, "result not sent to readers", "entry", one.id.String(), "error", err)
			continue
		}
		results[i] = result
	}
	decided := time.Now()
	audiences, err := s.audiences(ctx, results)
	if err != nil {
		return nil, err
	}
	entries := make([]entry, len(results))
	for i, result := range results {
		at := position{epoch: read.end.epoch, entry: read.entries[i].id, added: -1}
		if from.added >= 0 {
			at.added = from.added + int64(i) + 1
		}
		if at.entry == read.end.entry {
			at.added = read.end.added
		}
		entries[i] = entry{at: at, audience: audiences[i], decided: decided}
		if result.Type != "" {
			entries[i].frame = frameOf(result)
			result.Files = nil // of any number
			entries[i].result = result
		}
		if s.Cell == "" {
			entries[i].id = idLine(Cursor{"": at})
		}
	}
	return entries, nil
}

// frameOf returns a result as a server-sent event, without its ID.
func frameOf(result events.Result) []byte {
	document, err := notify.Document(result)
	if err != nil {
		return nil // impossible: it was parsed from JSON
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", KindOf(result.Type), document)
}

func idLine(at Cursor) []byte { return []byte("id: " + at.String() + "\n") }

// KindOf returns the short form of a type, such as synced.
func KindOf(t events.ResultType) string {
	parts := strings.Split(string(t), ".")
	return parts[max(0, len(parts)-2)]
}

// run tails the source.
func (s *source) run() {
	defer s.cancel()
	for s.ctx.Err() == nil {
		err := s.tail()
		switch wasDown := s.down.Swap(err != nil); {
		case s.ctx.Err() != nil:
		case err != nil && !wasDown:
			s.log().WarnContext(s.ctx, "streams of results paused, will retry", "error", err)
		case err == nil && wasDown:
			s.log().InfoContext(s.ctx, "streams of results resumed")
		}
		if err != nil {
			redisx.Pause(s.ctx, tailPause)
		}
	}
}

func (s *source) log() *slog.Logger {
	if s.Cell == "" {
		return s.feed.cfg.Log
	}
	return s.feed.cfg.Log.With("cell", s.Cell)
}

// tail reads the next results and wakes the clients that may read them, or waits for some.
func (s *source) tail() error {
	s.feed.mu.Lock()
	ready, from := s.recent.ready, s.recent.to
	s.feed.mu.Unlock()
	at := atEnd
	if ready {
		at = from.entry.String()
	}
	ctx, cancel := context.WithTimeout(s.ctx, readTimeout)
	defer cancel()
	read, err := s.readAt(ctx, at, from)
	switch {
	case err != nil:
		return err
	case !ready || read.gone: // clients compare their positions with the stream
		s.feed.mu.Lock()
		s.recent = recent{ready: true, start: read.end, from: read.end, to: read.end}
		s.feed.mu.Unlock()
		for _, c := range s.feed.all() {
			c.wake()
		}
		return nil
	case len(read.entries) == 0:
		_, err := s.feed.cfg.Reader.Next(s.ctx, stream.Cursor{s.results: at})
		return err
	}
	entries, err := s.prepare(ctx, from, read)
	if err != nil {
		return err
	}
	s.feed.mu.Lock()
	s.recent.add(entries)
	s.feed.mu.Unlock()
	for _, c := range s.feed.concerned(entries) {
		c.wake()
	}
	return nil
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
