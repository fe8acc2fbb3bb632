package server

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"lockstep/events/stream"
	"lockstep/internal/hosts"
	"lockstep/internal/operate"
	"lockstep/internal/telemetry"
)

// Streams reads stream statistics, which may be a few seconds old. [telemetry.Streams] implements it.
type Streams interface {
	Read(ctx context.Context) ([]stream.Statistics, error)
}

// Stream is a stream as shown by the API.
type Stream struct {
	Stream string  `json:"stream"`
	Length int64   `json:"length"`
	First  string  `json:"first,omitempty"` // ID of the oldest entry
	Last   string  `json:"last,omitempty"`  // ID of the newest entry
	Bytes  int64   `json:"bytes"`           // estimated by Redis; -1 if unknown
	Groups []Group `json:"groups"`
}

// Group is a consumer group of a stream. See [stream.GroupStatistics].
type Group struct {
	Group     string `json:"group"`
	Lag       int64  `json:"lag"` // entries not read yet; -1 if unknown
	Pending   int64  `json:"pending"`
	Parked    int64  `json:"parked"`
	Due       int64  `json:"due"`
	Late      int64  `json:"late"`
	Consumers int    `json:"consumers"`
	Live      int    `json:"live"`
	OldestMS  int64  `json:"oldest_unsettled_ms"` // age of the oldest unsettled entry
}

// NewStream converts statistics.
func NewStream(s stream.Statistics) Stream {
	shown := Stream{
		Stream: s.Stream, Length: s.Length, First: s.First, Last: s.Last, Bytes: s.Bytes,
		Groups: make([]Group, len(s.Groups)),
	}
	for i, g := range s.Groups {
		shown.Groups[i] = Group{g.Name, g.Lag, g.Pending, g.Parked, g.Due, g.Late, g.Consumers, g.Live,
			g.Oldest.Milliseconds()}
	}
	return shown
}

func listStreams(streams Streams) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		all, err := streams.Read(r.Context())
		if err != nil {
			return nil, err
		}
		list := struct {
			Streams []Stream `json:"streams"`
			Dead    int64    `json:"dead"` // number of dead letters
		}{Streams: make([]Stream, len(all))}
		for i, s := range all {
			list.Streams[i], list.Dead = NewStream(s), s.Dead
		}
		return list, nil
	})
}

func showVerdict(verdict func(context.Context) (operate.Verdict, error)) http.Handler {
	return answering(func(r *http.Request) (any, error) { return verdict(r.Context()) })
}

func listHosts(list *telemetry.Hosts) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		all, err := list.List(r.Context())
		byName := func(a, b hosts.Host) int { return cmp.Compare(a.Host, b.Host) }
		return map[string][]hosts.Host{"hosts": slices.SortedFunc(slices.Values(all), byName)}, err
	})
}
