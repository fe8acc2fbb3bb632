package server

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"lockstep/internal/hosts"
	"lockstep/internal/operate"
	"lockstep/internal/telemetry"
)

// Stream is a stream as shown by the API.
type Stream struct {
	Stream string          `json:"stream"`
	Length int64           `json:"length"`
	First  string          `json:"first,omitempty"` // ID of the oldest entry
	Last   string          `json:"last,omitempty"`  // ID of the newest entry
	Bytes  int64           `json:"bytes"`           // estimated by Redis; -1 if unknown
	Groups []operate.Group `json:"groups"`
}

func listStreams(streams *telemetry.Streams) http.Handler {
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
			list.Streams[i] = Stream{s.Stream, s.Length, s.First, s.Last, s.Bytes, operate.GroupsOf(s)}
			list.Dead = s.Dead
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
