package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep/events"
)

// work counts what is done about changes, and how long it takes from end to end.
type work struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	bytes    prometheus.Counter
	fenced   prometheus.Counter
	endToEnd *prometheus.HistogramVec
	stages   *prometheus.HistogramVec
}

// longSeconds are buckets from 1 ms to 4 h, for what may wait for a remote that is away.
var longSeconds = prometheus.ExponentialBuckets(0.001, 2.5, 19)

func newWork(registry *prometheus.Registry) work {
	w := work{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_sync_total", Help: "Attempts at changes under their lease, by what was done, how it ended and the kind of fault."}, []string{"op", "result", "reason"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_sync_duration_seconds", Help: "Time that attempts at changes took, from the work slot to the settlement.", Buckets: longSeconds}, []string{"op", "result"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_sync_bytes_total", Help: "Bytes of packs received from remotes."}),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_fencing_rejected_total", Help: "Attempts that were refused on the volume or in Redis, for a newer lease has been granted."}),
		endToEnd: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_end_to_end_seconds", Help: "Time from when a change was received, or else queued, to its settlement, over all attempts.", Buckets: longSeconds}, []string{"outcome"}),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_stage_seconds", Help: "The same time, by stage.", Buckets: longSeconds}, []string{"stage"}),
	}
	registry.MustRegister(w.total, w.duration, w.bytes, w.fenced, w.endToEnd, w.stages)
	return w
}

// Worked counts an attempt at a change that took so long and received so many bytes; err is what became of it.
func (m *Metrics) Worked(operation string, took time.Duration, received int64, err error) {
	result, reason := "ok", events.Class("")
	if err != nil {
		result, reason = events.DispositionOf(err).String(), events.ClassOf(err)
	}
	m.work.total.WithLabelValues(operation, result, string(reason)).Inc()
	m.work.duration.WithLabelValues(operation, result).Observe(took.Seconds())
	m.work.bytes.Add(float64(received))
	if reason == events.ClassStale {
		m.work.fenced.Inc()
	}
}

// Settled counts how long a change took from end to end.
func (m *Metrics) Settled(outcome string, took time.Duration) {
	m.work.endToEnd.WithLabelValues(outcome).Observe(took.Seconds())
}

// Stage counts how long a settled change was in one stage of its way.
func (m *Metrics) Stage(stage string, took time.Duration) {
	m.work.stages.WithLabelValues(stage).Observe(took.Seconds())
}
