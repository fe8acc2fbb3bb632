package server

import (
	"context"
	"net/http"

	"lockstep/events/stream"
)

// Streams are what the API shows of streams; a [telemetry.Streams] is. Read may answer with figures
// that are a few seconds old.
type Streams interface {
	Read(ctx context.Context) ([]stream.Statistics, error)
}

// Stream is a stream as the API shows it.
type Stream struct {
	Stream string  `json:"stream"`
	Length int64   `json:"length"`
	First  string  `json:"first,omitempty"` // id of the oldest entry
	Last   string  `json:"last,omitempty"`  // id of the newest
	Bytes  int64   `json:"bytes"`           // by Redis' estimate; -1 when it cannot tell
	Groups []Group `json:"groups"`
}

// Group is one group's part in a stream; see [stream.GroupStatistics].
type Group struct {
	Group     string `json:"group"`
	Lag       int64  `json:"lag"` // not read yet; -1 when Redis cannot tell
	Pending   int64  `json:"pending"`
	Parked    int64  `json:"parked"`
	Due       int64  `json:"due"`
	Late      int64  `json:"late"`
	Consumers int    `json:"consumers"`
	OldestMS  int64  `json:"oldest_unsettled_ms"` // age of the oldest entry that is not settled
}

// NewStream shows figures.
func NewStream(s stream.Statistics) Stream {
	shown := Stream{Stream: s.Stream, Length: s.Length, First: s.First, Last: s.Last, Bytes: s.Bytes, Groups: make([]Group, len(s.Groups))}
	for i, g := range s.Groups {
		shown.Groups[i] = Group{g.Name, g.Lag, g.Pending, g.Parked, g.Due, g.Late, g.Consumers, g.Oldest.Milliseconds()}
	}
	return shown
}

func listStreams(streams Streams) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all, err := streams.Read(r.Context())
		if err != nil {
			unavailable(w)
			return
		}
		list := struct {
			Streams []Stream `json:"streams"`
			Dead    int64    `json:"dead"` // letters
		}{Streams: make([]Stream, len(all))}
		for i, s := range all {
			list.Streams[i], list.Dead = NewStream(s), s.Dead
		}
		reply(w, http.StatusOK, list)
	})
}
