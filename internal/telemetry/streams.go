package telemetry

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

var (
	perStream = []string{"stream"}
	perGroup  = []string{"stream", "group"}

	streamsUp = prometheus.NewDesc("lockstep_streams_up", "Whether the stream statistics could be read from Redis.",
		nil, nil)
	wanted = prometheus.NewDesc("lockstep_workers_wanted",
		"Workers needed for the changes that are ready or running, by the slots of each.", nil, nil)
	deadNow = prometheus.NewDesc("lockstep_dead_letters", "Letters in the dead stream.", nil, nil)

	streamLength = prometheus.NewDesc("lockstep_stream_entries", "Entries kept in a stream.", perStream, nil)
	streamBytes  = prometheus.NewDesc("lockstep_stream_bytes", "Memory used by a stream, estimated by Redis.",
		perStream, nil)

	groupLag = prometheus.NewDesc("lockstep_stream_lag", "Entries not yet read by a group; absent if unknown.",
		perGroup, nil)
	groupPending = prometheus.NewDesc("lockstep_stream_pending", "Entries read but not settled by a group.",
		perGroup, nil)
	groupParked = prometheus.NewDesc("lockstep_stream_parked",
		"Pending entries waiting for redelivery, held by no consumer.", perGroup, nil)
	groupDue  = prometheus.NewDesc("lockstep_stream_due", "Pending entries with a due time.", perGroup, nil)
	groupLate = prometheus.NewDesc("lockstep_stream_late", "Pending entries whose due time has passed.",
		perGroup, nil)
	groupConsumers = prometheus.NewDesc("lockstep_stream_consumers", "Consumers of a group.", perGroup, nil)
	groupLive      = prometheus.NewDesc("lockstep_stream_live_consumers",
		"Consumers of a group with a heartbeat or read within 15 s.", perGroup, nil)
	groupOldest = prometheus.NewDesc("lockstep_stream_oldest_unsettled_seconds",
		"Age of the oldest entry not settled by a group.", perGroup, nil)
)

// collect exports only lockstep_streams_up if Redis does not answer.
func (s *Streams) collect(gauge gauge) {
	all, err := s.Read(context.Background())
	if err != nil {
		gauge(streamsUp, 0)
		return
	}
	gauge(streamsUp, 1)
	for i, one := range all {
		if i == 0 { // identical for all streams
			gauge(deadNow, float64(one.Dead))
		}
		if one.Stream == events.Namespace(s.prefix).Changes() {
			gauge(wanted, float64(DemandOf(one, events.WorkersGroup).Consumers(s.Slots)))
		}
		gauge(streamLength, float64(one.Length), one.Stream)
		if one.Bytes >= 0 {
			gauge(streamBytes, float64(one.Bytes), one.Stream)
		}
		for _, g := range one.Groups {
			if g.Lag >= 0 {
				gauge(groupLag, float64(g.Lag), one.Stream, g.Name)
			}
			gauge(groupPending, float64(g.Pending), one.Stream, g.Name)
			gauge(groupParked, float64(g.Parked), one.Stream, g.Name)
			gauge(groupDue, float64(g.Due), one.Stream, g.Name)
			gauge(groupLate, float64(g.Late), one.Stream, g.Name)
			gauge(groupConsumers, float64(g.Consumers), one.Stream, g.Name)
			gauge(groupLive, float64(g.Live), one.Stream, g.Name)
			gauge(groupOldest, g.Oldest.Seconds(), one.Stream, g.Name)
		}
	}
}

// Export adds the stream statistics to the metrics. It must be called at most once.
func (m *Metrics) Export(s *Streams) {
	m.registry.gauges(s.collect, streamsUp, wanted, deadNow, streamLength, streamBytes,
		groupLag, groupPending, groupParked, groupDue, groupLate, groupConsumers, groupLive, groupOldest)
}

type trims struct {
	trimmed *prometheus.CounterVec
	dropped *prometheus.CounterVec
	letters *prometheus.CounterVec
}

func newTrims(r registrar) trims {
	return trims{
		trimmed: r.counters("lockstep_stream_trimmed_total", "Entries trimmed from a stream by this process, by cause.",
			"stream", "cause"),
		dropped: r.counters("lockstep_stream_dropped_total",
			"Unsettled entries trimmed from a full stream by this process, by group.", perGroup...),
		letters: r.counters("lockstep_dead_letters_dropped_total", "Dead letters trimmed by this process, by cause.",
			"cause"),
	}
}

// Trim counts the entries removed by a [stream.Trimmer].
func (m *Metrics) Trim(done stream.Trim) {
	if done.Dead {
		m.trims.letters.WithLabelValues("age").Add(float64(done.Aged))
		m.trims.letters.WithLabelValues("length").Add(float64(done.Capped))
		return
	}
	m.trims.trimmed.WithLabelValues(done.Stream, "settled").Add(float64(done.Settled))
	m.trims.trimmed.WithLabelValues(done.Stream, "age").Add(float64(done.Aged))
	m.trims.trimmed.WithLabelValues(done.Stream, "length").Add(float64(done.Capped))
	for group, n := range done.Lost {
		m.trims.dropped.WithLabelValues(done.Stream, group).Add(float64(n))
	}
}
