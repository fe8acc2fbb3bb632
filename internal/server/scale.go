package server

import (
	"net/http"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/telemetry"
)

// Scale says how many workers the changes need. See [telemetry.Demand].
type Scale struct {
	Ready   int64 `json:"ready"`
	Running int64 `json:"running"`
	Parked  int64 `json:"parked"`
	Workers int   `json:"workers"`        // that take changes
	Wanted  int64 `json:"workers_wanted"` // (ready + running) / slots, rounded up
	Slots   int   `json:"slots"`          // of each worker, as this process is configured
}

// showScale serves the figures of the stream of changes.
func showScale(cfg Config) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		all, err := cfg.Streams.Read(r.Context())
		if err != nil {
			return nil, err
		}
		return newScale(all, cfg.Topic, cfg.Slots), nil
	})
}

func newScale(all []stream.Statistics, topic string, slots int) Scale {
	scale := Scale{Slots: max(slots, 1)}
	for _, s := range all {
		if s.Stream != topic {
			continue
		}
		demand := telemetry.DemandOf(s, events.WorkersGroup)
		scale.Ready, scale.Running, scale.Parked = demand.Ready, demand.Running, demand.Parked
		scale.Wanted = demand.Consumers(scale.Slots)
		if workers, ok := s.Group(events.WorkersGroup); ok {
			scale.Workers = workers.Live
		}
	}
	return scale
}
