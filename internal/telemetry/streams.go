package telemetry

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cache"
)

// Streams reads the statistics of a deployment's streams on demand, caches them, and exports them as metrics. Every
// process exports the same values, so aggregate them with max, not sum. It is safe for concurrent use.
type Streams struct {
	Slots int // slots of each worker, for lockstep_workers_wanted; at least 1. Set it before use.

	redis  redis.UniversalClient
	prefix string
	topics []string
	cache  cache.Cache[[]stream.Statistics]
}

const (
	sharedTTL   = 5 * time.Second // of state that all processes share in Redis
	readTimeout = 2 * time.Second
)

// NewStreams returns Streams for the topics, whose groups store due times under prefix.
func NewStreams(client redis.UniversalClient, prefix string, topics ...string) *Streams {
	return &Streams{redis: client, prefix: prefix, topics: topics,
		cache: cache.Cache[[]stream.Statistics]{TTL: sharedTTL, Timeout: readTimeout}}
}

// Read returns the statistics of each topic, cached for 5 s. The read does not end with ctx, but after 2 s.
func (s *Streams) Read(ctx context.Context) ([]stream.Statistics, error) {
	return s.cache.Get(ctx, func(ctx context.Context) ([]stream.Statistics, error) {
		all := make([]stream.Statistics, 0, len(s.topics))
		for _, topic := range s.topics {
			one, err := stream.Stats(ctx, s.redis, s.prefix, topic)
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
		return all, nil
	})
}

// collect exports only lockstep_streams_up if Redis does not answer.
func (s *Streams) collect(gauge gauge) {
	all, err := s.Read(context.Background())
	gauge("lockstep_streams_up", "Whether the stream statistics could be read from Redis.", flag(err == nil))
	if err != nil {
		return
	}
	for i, one := range all {
		if i == 0 { // identical for all streams
			gauge("lockstep_dead_letters", "Letters in the dead stream.", float64(one.Dead))
		}
		if one.Stream == events.Namespace(s.prefix).Changes() {
			gauge("lockstep_workers_wanted", "Workers needed for the changes that are ready or running, by the slots of each.",
				float64(DemandOf(one, events.WorkersGroup).Consumers(s.Slots)))
		}
		gauge("lockstep_stream_entries", "Entries kept in a stream.", float64(one.Length), "stream", one.Stream)
		if one.Bytes >= 0 {
			gauge("lockstep_stream_bytes", "Memory used by a stream, estimated by Redis.", float64(one.Bytes),
				"stream", one.Stream)
		}
		for _, g := range one.Groups {
			collectGroup(g, func(name, help string, value float64, _ ...string) {
				gauge(name, help, value, "stream", one.Stream, "group", g.Name)
			})
		}
	}
}

func collectGroup(g stream.GroupStatistics, gauge gauge) {
	if g.Lag >= 0 {
		gauge("lockstep_stream_lag", "Entries not yet read by a group; absent if unknown.", float64(g.Lag))
	}
	gauge("lockstep_stream_pending", "Entries read but not settled by a group.", float64(g.Pending))
	gauge("lockstep_stream_parked", "Pending entries waiting for redelivery, held by no consumer.", float64(g.Parked))
	gauge("lockstep_stream_due", "Pending entries with a due time.", float64(g.Due))
	gauge("lockstep_stream_late", "Pending entries whose due time has passed.", float64(g.Late))
	gauge("lockstep_stream_consumers", "Consumers of a group.", float64(g.Consumers))
	gauge("lockstep_stream_live_consumers", "Consumers of a group with a heartbeat or read within 15 s.", float64(g.Live))
	gauge("lockstep_stream_oldest_unsettled_seconds", "Age of the oldest entry not settled by a group.",
		g.Oldest.Seconds())
}

// Export adds the stream statistics to the metrics. It must be called at most once.
func (m *Metrics) Export(s *Streams) { m.registry.gauges(s.collect) }

// Trim counts the entries removed by a [stream.Trimmer].
func (m *Metrics) Trim(done stream.Trim) {
	if done.Dead {
		m.letters.WithLabelValues("age").Add(float64(done.Aged))
		m.letters.WithLabelValues("length").Add(float64(done.Capped))
		return
	}
	m.trimmed.WithLabelValues(done.Stream, "settled").Add(float64(done.Settled))
	m.trimmed.WithLabelValues(done.Stream, "age").Add(float64(done.Aged))
	m.trimmed.WithLabelValues(done.Stream, "length").Add(float64(done.Capped))
	for group, n := range done.Lost {
		m.dropped.WithLabelValues(done.Stream, group).Add(float64(n))
	}
}
