package telemetry

import (
	"runtime"
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

var handlerUp = prometheus.NewDesc("lockstep_handler_up", "Whether a handler that this process has to run does run.", []string{"handler"}, nil)

// handlers are read when they are asked for.
type handlers struct{ read func() map[string]bool }

// Describe is part of [prometheus.Collector].
func (*handlers) Describe(to chan<- *prometheus.Desc) { to <- handlerUp }

// Collect is part of [prometheus.Collector].
func (h *handlers) Collect(to chan<- prometheus.Metric) {
	for name, up := range h.read() {
		value := 0.0
		if up {
			value = 1
		}
		to <- prometheus.MustNewConstMetric(handlerUp, prometheus.GaugeValue, value, name)
	}
}

// Handlers exports which of the handlers that this process has to run do run. It is to be called once.
func (m *Metrics) Handlers(read func() map[string]bool) { m.registry.MustRegister(&handlers{read}) }

// Build exports which build this is. It is to be called once.
func (m *Metrics) Build(version, revision string) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lockstep_build_info", Help: "Always 1; its labels say which build this is.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision, "go": runtime.Version()},
	}, func() float64 { return 1 }))
}
