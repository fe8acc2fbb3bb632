package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep/events"
)

type work struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	bytes    prometheus.Counter
	fenced   prometheus.Counter
	missing  *prometheus.CounterVec
	endToEnd *prometheus.HistogramVec
	stages   *prometheus.HistogramVec
}

// longSeconds are buckets from 1 ms to 4 h, for changes that may wait for an unreachable remote.
var longSeconds = prometheus.ExponentialBuckets(0.001, 2.5, 19)

func newWork(r registrar) work {
	return work{
		total: r.counters("lockstep_sync_total",
			"Attempts at changes under their lease, by operation, result and error class.", "op", "result", "reason"),
		duration: r.histograms("lockstep_sync_duration_seconds",
			"Duration of attempts at changes, from the lease to the settlement.", longSeconds, "op", "result"),
		bytes: r.counter("lockstep_sync_bytes_total", "Bytes of packs received from remotes."),
		fenced: r.counter("lockstep_fencing_rejected_total",
			"Attempts rejected by the volume or Redis because a newer lease was granted."),
		missing: r.counters("lockstep_submodules_missing_total",
			"Submodules that could not be fetched, in settled syncs, by error class.", "class"),
		endToEnd: r.histograms("lockstep_end_to_end_seconds", "Time from a change's arrival, or else its stream "+
			"entry, to its settlement, over all attempts.",
			longSeconds, "outcome"),
		stages: r.histograms("lockstep_stage_seconds", "End-to-end time of changes, by stage.", longSeconds, "stage"),
	}
}

// Worked counts an attempt at a change: its duration, the bytes received from the remote, and its error, if any.
func (m *Metrics) Worked(operation string, took time.Duration, received int64, err error) {
	result, reason := "ok", events.Class("")
	if err != nil {
		result, reason = events.DispositionOf(err).String(), events.ClassOf(err)
	}
	m.work.total.WithLabelValues(operation, result, string(reason)).Inc()
	m.work.duration.WithLabelValues(operation, result).Observe(took.Seconds())
	m.work.bytes.Add(float64(received))
}

// Fenced counts an attempt that was rejected because a newer lease was granted.
func (m *Metrics) Fenced() { m.work.fenced.Inc() }

// MissingSubmodule counts a submodule that a published tree lacks.
func (m *Metrics) MissingSubmodule(class events.Class) {
	m.work.missing.WithLabelValues(string(class)).Inc()
}

// Settled records the end-to-end time of a settled change.
func (m *Metrics) Settled(outcome string, took time.Duration) {
	m.work.endToEnd.WithLabelValues(outcome).Observe(took.Seconds())
}

// Stage records the time that a settled change spent in a stage.
func (m *Metrics) Stage(stage string, took time.Duration) {
	m.work.stages.WithLabelValues(stage).Observe(took.Seconds())
}
