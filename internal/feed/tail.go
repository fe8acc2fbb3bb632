package feed

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/changes"
	"lockstep/internal/notify"
	"lockstep/internal/redisx"
)

const tailPause = 500 * time.Millisecond

// Source is a cell whose results are sent.
type Source struct {
	Cell      string           // "" for a deployment without cells
	Namespace events.Namespace // of its keys

	// Audiences returns for each result the apps that may read it. [access.Reader.Audiences] implements it.
	Audiences func(
		ctx context.Context, results []events.Result, failed func(events.Result, error),
	) ([]access.Audience, error)
}

// source is a source that can be tailed.
type source struct {
	Source
	feed              *Feed
	results, epochKey string

	down    atomic.Bool // Redis does not answer
	inboxes inboxes
}

func newSource(f *Feed, of Source) *source {
	results := of.Namespace.Results()
	return &source{Source: of, feed: f, results: results, epochKey: results + ":epoch"}
}

// is reports whether s is the source of a cell.
func (s *source) is(of Source) bool { return s.Cell == of.Cell && s.Namespace == of.Namespace }

// entry is a result as it is sent.
type entry struct {
	at       position
	id       []byte // the line with the cursor, if there is one source; nil if each client has its own
	frame    []byte // the event without that line; nil if nobody gets it
	audience access.Audience
	decided  time.Time // when the audience was
}

func (e *entry) isFor(app string) bool {
	return e.frame != nil && (app == "" || e.audience.Has(app))
}

// prepare decides who may read entries, which follow the position from, and encodes them.
func (s *source) prepare(ctx context.Context, from position, read page) ([]*entry, error) {
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
	audiences, err := s.Audiences(ctx, results, func(r events.Result, err error) {
		s.feed.cfg.Log.ErrorContext(ctx, "result not sent to apps, the watches cannot be decoded",
			"repo", r.Repo.String(), "result", r.ID, "error", err)
	})
	if err != nil {
		return nil, err
	}
	entries := make([]*entry, len(results))
	for i, result := range results {
		at := position{epoch: read.end.epoch, entry: read.entries[i].id, added: -1}
		if from.added >= 0 {
			at.added = from.added + int64(i) + 1
		}
		if at.entry == read.end.entry {
			at.added = read.end.added
		}
		entries[i] = &entry{at: at, audience: audiences[i], decided: decided}
		if result.Type != "" {
			entries[i].frame = frameOf(result)
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
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", changes.Kind(result.Type), document)
}

func idLine(at Cursor) []byte { return []byte("id: " + at.String() + "\n") }

// run tails the source until ctx is done.
func (s *source) run(ctx context.Context) {
	var at position
	for ctx.Err() == nil {
		next, err := s.tail(ctx, at)
		at = next
		switch wasDown := s.down.Swap(err != nil); {
		case ctx.Err() != nil:
		case err != nil && !wasDown:
			s.feed.cfg.Log.WarnContext(ctx, "streams of results paused, will retry", "stream", s.results, "error", err)
		case err == nil && wasDown:
			s.feed.cfg.Log.InfoContext(ctx, "streams of results resumed", "stream", s.results)
		}
		if err != nil {
			redisx.Pause(ctx, tailPause)
		}
	}
}

// tail passes on the next results after a position, or waits for some, and returns the position after them. The
// zero position is unknown.
func (s *source) tail(ctx context.Context, from position) (to position, err error) {
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	at := atEnd
	if from != (position{}) {
		at = from.entry.String()
	}
	read, err := s.readAt(reading, at, from)
	switch {
	case err != nil:
		return from, err
	case at == atEnd || read.gone:
		s.inboxes.restart(read.end)
		return read.end, nil
	case len(read.entries) == 0:
		_, err := s.feed.cfg.Reader.Next(ctx, map[string]string{s.results: at})
		return from, err
	}
	entries, err := s.prepare(reading, from, read)
	if err != nil {
		return from, err
	}
	s.inboxes.put(entries)
	return entries[len(entries)-1].at, nil
}

// batch is what follows a position.
type batch struct {
	entries []*entry
	to      position // after them
	last    bool     // they are the last ones
}

// after reads what follows a position from Redis. It returns errGone if results are missing.
func (s *source) after(ctx context.Context, at position) (batch, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	read, err := s.readAt(ctx, at.entry.String(), at)
	switch {
	case err != nil:
		return batch{}, err
	case read.gone:
		return batch{}, errGone
	case len(read.entries) == 0:
		return batch{to: read.end, last: true}, nil
	}
	entries, err := s.prepare(ctx, at, read)
	if err != nil {
		return batch{}, err
	}
	to := entries[len(entries)-1].at
	return batch{entries, to, to.entry == read.end.entry}, nil
}
