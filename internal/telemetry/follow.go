package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// FollowerFigures has the progress of a follower of a reader.
type FollowerFigures struct {
	Connected bool
	Repos     int           // that the token reads
	Behind    int           // refs that are not published yet
	Lag       time.Duration // time since everything that the reader has was published here; 0 if it still is
}

var (
	followerConnected = prometheus.NewDesc("lockstep_follower_connected",
		"Whether this follower is connected to its reader.", nil, nil)
	followerRepos = prometheus.NewDesc("lockstep_follower_repositories",
		"Repositories that this follower keeps, as of its last list.", nil, nil)
	followerBehind = prometheus.NewDesc("lockstep_follower_behind",
		"Refs that the reader has and this follower has not published yet.", nil, nil)
	followerLag = prometheus.NewDesc("lockstep_follower_lag_seconds",
		"Time since this follower last had everything that its reader has; 0 if it has it now.", nil, nil)
)

// Follower exports the figures of a follower until stop is called.
func (m *Metrics) Follower(read func() FollowerFigures) (stop func()) {
	return m.registry.gauges(func(gauge gauge) {
		f, connected := read(), 0.0
		if f.Connected {
			connected = 1
		}
		gauge(followerConnected, connected)
		gauge(followerRepos, float64(f.Repos))
		gauge(followerBehind, float64(f.Behind))
		gauge(followerLag, f.Lag.Seconds())
	}, followerConnected, followerRepos, followerBehind, followerLag)
}
