package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
)

// What [Streams] have read is good for so long, and reading may take so long: however many scrape,
// Redis is asked a few times a minute.
const (
	streamsFresh   = 5 * time.Second
	streamsTimeout = 2 * time.Second
)

// Streams read the figures of a deployment's streams when they are asked for, and export them. Each
// process that does so exports the same ones; take the max of them, not the sum.
type Streams struct {
	redis  redis.UniversalClient
	prefix string
	topics []string

	mu    sync.Mutex
	until time.Time // when what follows is stale
	last  []stream.Statistics
	err   error
}

// NewStreams makes Streams of the topics, whose groups keep their due moments under prefix.
func NewStreams(client redis.UniversalClient, prefix string, topics ...string) *Streams {
	return &Streams{redis: client, prefix: prefix, topics: topics}
}

// Read returns each topic's figures, at most 5 s old, or the error of reading them, just as old. It
// takes at most 2 s, whether or not ctx is done before.
func (s *Streams) Read(ctx context.Context) ([]stream.Statistics, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.until) {
		return s.last, s.err
	}
	// Others may be waiting for what this caller asks for: it is not to be cancelled with the caller.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), streamsTimeout)
	defer cancel()
	s.last, s.err = make([]stream.Statistics, 0, len(s.topics)), nil
	for _, topic := range s.topics {
		one, err := stream.Stats(ctx, s.redis, s.prefix, topic)
		if err != nil {
			s.last, s.err = nil, err
			break
		}
		s.last = append(s.last, one)
	}
	s.until = time.Now().Add(streamsFresh)
	return s.last, s.err
}

var (
	perStream = []string{"stream"}
	perGroup  = []string{"stream", "group"}

	streamsUp = prometheus.NewDesc("lockstep_streams_up", "Whether Redis could be asked for the streams' figures.", nil, nil)
	deadNow   = prometheus.NewDesc("lockstep_dead_letters", "Letters in the dead stream.", nil, nil)

	streamLength = prometheus.NewDesc("lockstep_stream_entries", "Entries kept in a stream.", perStream, nil)
	streamBytes  = prometheus.NewDesc("lockstep_stream_bytes", "Memory that a stream takes, by Redis' estimate.", perStream, nil)

	groupLag       = prometheus.NewDesc("lockstep_stream_lag", "Entries that a group has yet to read; absent when Redis cannot tell.", perGroup, nil)
	groupPending   = prometheus.NewDesc("lockstep_stream_pending", "Entries that a group has read and not settled.", perGroup, nil)
	groupParked    = prometheus.NewDesc("lockstep_stream_parked", "Pending entries that wait in nobody's hands to be delivered again.", perGroup, nil)
	groupDue       = prometheus.NewDesc("lockstep_stream_due", "Pending entries that have a due moment.", perGroup, nil)
	groupLate      = prometheus.NewDesc("lockstep_stream_late", "Pending entries whose due moment has passed.", perGroup, nil)
	groupConsumers = prometheus.NewDesc("lockstep_stream_consumers", "Consumers of a group.", perGroup, nil)
	groupOldest    = prometheus.NewDesc("lockstep_stream_oldest_unsettled_seconds", "Age of the oldest entry that a group has yet to settle.", perGroup, nil)
)

// Describe is part of [prometheus.Collector].
func (s *Streams) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		streamsUp, deadNow, streamLength, streamBytes,
		groupLag, groupPending, groupParked, groupDue, groupLate, groupConsumers, groupOldest,
	} {
		to <- desc
	}
}

// Collect is part of [prometheus.Collector]. When Redis does not answer, the figures are left out.
func (s *Streams) Collect(to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	all, err := s.Read(context.Background())
	if err != nil {
		gauge(streamsUp, 0)
		return
	}
	gauge(streamsUp, 1)
	for i, one := range all {
		if i == 0 { // the same of each
			gauge(deadNow, float64(one.Dead))
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
			gauge(groupOldest, g.Oldest.Seconds(), one.Stream, g.Name)
		}
	}
}

// Export adds the streams' figures to the metrics. It is to be called once.
func (m *Metrics) Export(s *Streams) { m.registry.MustRegister(s) }

// trims count what a [stream.Trimmer] takes away.
type trims struct {
	trimmed *prometheus.CounterVec
	dropped *prometheus.CounterVec
	letters *prometheus.CounterVec
}

func newTrims(registry *prometheus.Registry) trims {
	t := trims{
		trimmed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_stream_trimmed_total", Help: "Entries that this process took away from a stream, by why."}, []string{"stream", "cause"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_stream_dropped_total", Help: "Entries that this process took away from a full stream and that a group had yet to settle."}, perGroup),
		letters: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_dead_letters_dropped_total", Help: "Dead letters that this process took away, by why."}, []string{"cause"}),
	}
	registry.MustRegister(t.trimmed, t.dropped, t.letters)
	return t
}

// Trim counts what was taken away from a stream; a [stream.Trimmer] tells of it.
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
