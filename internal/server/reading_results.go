package server

import (
	"cmp"
	"errors"
	"net/http"

	"lockstep/internal/access"
	"lockstep/internal/feed"
)

// sendResults streams results as server-sent events.
func (s *Reading) sendResults(w http.ResponseWriter, r *http.Request, from request) error {
	if s.Feed == nil {
		return access.ErrNotFound
	}
	start, err := startOf(r)
	if err != nil {
		return err
	}
	most := cmp.Or(s.MaxStreams, mostStreams())
	release, err := s.streams.take(from.who.App, most, max(1, most/2), errBusyStreams)
	if err != nil {
		return err
	}
	defer release()
	at, err := s.locate(r, from, start)
	if err != nil {
		return refusedStart(w, err)
	}
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "private, no-store")
	header.Set("X-Accel-Buffering", "no") // nginx
	if r.Method == http.MethodHead {
		return nil
	}
	header.Set("Connection", "close")
	who := feed.Client{App: from.who.App, From: at}
	if !from.who.Operator {
		who.Token = access.HashOf(access.TokenOf(r))
	}
	if err := s.Feed.Serve(w, r, who); err != nil {
		return problem{err, http.StatusServiceUnavailable}
	}
	return nil
}

// locate returns the position of a stream. It asks Redis, so it counts as a request, while the stream itself does not.
func (s *Reading) locate(r *http.Request, from request, start feed.Start) (feed.Cursor, error) {
	release, err := s.requests.take(from.who.App, maxRequests, maxRequestsApp, errBusy)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.Feed.Locate(r.Context(), start)
}

// startOf returns where a stream begins. Last-Event-ID comes first: browsers send it when they repeat a request.
func startOf(r *http.Request) (feed.Start, error) {
	query := r.URL.Query()
	cursor, oldest := query.Get("cursor"), query.Get("from")
	switch {
	case oldest != "" && oldest != "start":
		return feed.Start{}, badRequest(errors.New("from: want start"))
	case oldest != "" && cursor != "":
		return feed.Start{}, badRequest(errors.New("cursor, from: give one of them"))
	}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		cursor = last
	}
	return feed.Start{Cursor: cursor, Oldest: oldest != ""}, nil
}

// refusedStart responds that a cursor is gone, or returns another error.
func refusedStart(w http.ResponseWriter, err error) error {
	gone, ok := errors.AsType[*feed.GoneError](err)
	switch {
	case ok:
		reply(w, http.StatusGone, map[string]string{"error": gone.Error(), "cursor": gone.End.String()})
		return nil
	case errors.Is(err, feed.ErrMalformed):
		return badRequest(err)
	}
	return err
}
