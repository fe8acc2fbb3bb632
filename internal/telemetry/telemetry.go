// Package telemetry provides Prometheus metrics, OpenTelemetry traces, and a log handler that adds trace IDs. Metrics
// have no repository label, because a deployment may have a million repositories.
package telemetry

import (
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lockstep/events"
	"lockstep/internal/schedule"
	"lockstep/internal/state"
	"lockstep/locking"
)

// Metrics are the metrics of one process. Its methods are safe for concurrent use.
type Metrics struct {
	registry registrar

	deliveries   *prometheus.CounterVec
	attempts     *prometheus.HistogramVec
	inFlight     *prometheus.GaugeVec
	finished     *prometheus.HistogramVec
	lapsed       *prometheus.CounterVec
	vanished     prometheus.Counter
	lockWaiters  prometheus.Gauge
	lockWait     *prometheus.HistogramVec
	lockHeld     prometheus.Histogram
	lockLost     *prometheus.CounterVec
	lockDoubtful prometheus.Counter
	changes      *prometheus.CounterVec
	circuits     *prometheus.CounterVec
	freed        prometheus.Counter
	trimmed      *prometheus.CounterVec
	dropped      *prometheus.CounterVec
	letters      *prometheus.CounterVec
	notified     *prometheus.CounterVec
	notifying    prometheus.Histogram
	polls        prometheus.Counter
	drift        *prometheus.CounterVec
	work         work
	hosts        *hostObserver
}

// New returns metrics with a new registry.
func New() *Metrics {
	seconds := prometheus.ExponentialBuckets(0.001, 2.5, 14) // 1 ms to 2.5 min
	r := newRegistrar()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector())
	m := &Metrics{
		registry: r,
		deliveries: r.counters("lockstep_messages_delivered_total",
			"Messages delivered to a handler, by whether they were redelivered.", "stream", "again"),
		attempts: r.histograms("lockstep_message_attempts", "Attempt number of delivered messages.",
			[]float64{1, 2, 3, 4, 6, 8, 12, 16}, "stream"),
		inFlight: promauto.With(r).NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_messages_in_flight", Help: "Messages read but not finished."}, []string{"stream"}),
		finished: r.histograms("lockstep_message_seconds",
			"Time from the delivery of a message to its end, by outcome.", seconds, "stream", "outcome"),
		lapsed: r.counters("lockstep_claims_total", "Messages claimed from consumers that crashed or hung.", "stream"),
		vanished: r.counter("lockstep_changes_vanished_total",
			"Changes that were trimmed or deleted before they were settled."),
		lockWaiters: promauto.With(r).NewGauge(prometheus.GaugeOpts{
			Name: "lockstep_lock_waiters", Help: "Requests waiting for a lease."}),
		lockWait: r.histograms("lockstep_lock_wait_seconds", "Time spent waiting for a lease, by result.", seconds,
			"result"),
		lockHeld:     r.histogram("lockstep_lock_held_seconds", "Time that leases were held.", seconds),
		lockLost:     r.counters("lockstep_lock_lost_total", "Leases lost to another holder or released by force.", "forced"),
		lockDoubtful: r.counter("lockstep_lock_in_doubt_total", "Leases not renewed in time."),
		changes: r.counters("lockstep_changes_total", "Processed changes by outcome and error class.", "outcome",
			"class"),
		circuits: r.counters("lockstep_circuit_transitions_total", "Transitions of circuit breakers, by new phase.", "to"),
		freed:    r.counter("lockstep_gc_freed_bytes_total", "Bytes on disk freed by this process's garbage collections."),
		trimmed: r.counters("lockstep_stream_trimmed_total", "Entries trimmed from a stream by this process, by cause.",
			"stream", "cause"),
		dropped: r.counters("lockstep_stream_dropped_total",
			"Unsettled entries trimmed from a full stream by this process, by group.", "stream", "group"),
		letters: r.counters("lockstep_dead_letters_dropped_total", "Dead letters trimmed by this process, by cause.",
			"cause"),
		notified: r.counters("lockstep_notify_total", "Attempts to notify apps and dropped notifications, by result.",
			"result"),
		notifying: r.histogram("lockstep_notify_duration_seconds", "Duration of attempts to notify apps.",
			prometheus.ExponentialBuckets(0.005, 2.5, 10)), // 5 ms to 19 s
		polls: r.counter("lockstep_polls_total", "Polls of repositories scheduled by this process."),
		drift: r.counters("lockstep_reconcile_drift_total",
			"Deviations found by this process's reconciliations, by kind.", "kind"),
		work: newWork(r), hosts: newHostObserver(r),
	}
	for _, kind := range schedule.Kinds {
		m.drift.WithLabelValues(string(kind)) // export 0 from the start
	}
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Handlers exports whether each handler of this process is running. It must be called at most once.
func (m *Metrics) Handlers(read func() map[string]bool) {
	m.registry.gauges(func(gauge gauge) {
		for name, up := range read() {
			gauge("lockstep_handler_up", "Whether each handler of this process's roles is running (1) or not (0).", flag(up),
				"handler", name)
		}
	})
}

// Build exports the program's version and revision. It must be called at most once.
func (m *Metrics) Build(version, revision string) {
	m.registry.gauges(func(gauge gauge) {
		gauge("lockstep_build_info", "Always 1; the labels identify the build.", 1,
			"version", version, "revision", revision, "go", runtime.Version())
	})
}

// Change counts the outcome of a change. class is the class of its error, or "".
func (m *Metrics) Change(outcome, class string) { m.changes.WithLabelValues(outcome, class).Inc() }

// Circuit counts a transition of a circuit breaker.
func (m *Metrics) Circuit(to state.CircuitPhase) { m.circuits.WithLabelValues(string(to)).Inc() }

// Vanished counts changes that have vanished from the stream.
func (m *Metrics) Vanished(n int64) { m.vanished.Add(float64(n)) }

// Delivered counts a delivery of a stream.
func (m *Metrics) Delivered(name string, attempt int) {
	m.deliveries.WithLabelValues(name, yesNo(attempt > 1)).Inc()
	m.attempts.WithLabelValues(name).Observe(float64(attempt))
	m.inFlight.WithLabelValues(name).Inc()
}

// Finished counts the end of a delivery.
func (m *Metrics) Finished(name, outcome string, took time.Duration) {
	m.inFlight.WithLabelValues(name).Dec()
	m.finished.WithLabelValues(name, outcome).Observe(took.Seconds())
}

// Lapsed counts an entry that its consumer did not finish.
func (m *Metrics) Lapsed(name string) { m.lapsed.WithLabelValues(name).Inc() }

// Locks returns the observer of a locker.
func (m *Metrics) Locks() locking.Observer { return lockObserver{m} }

type lockObserver struct{ m *Metrics }

func (o lockObserver) WaitBegan() { o.m.lockWaiters.Inc() }

func (o lockObserver) WaitEnded(outcome locking.Outcome, waited time.Duration) {
	o.m.lockWaiters.Dec()
	o.m.lockWait.WithLabelValues(string(outcome)).Observe(waited.Seconds())
}

func (o lockObserver) Released(held time.Duration) { o.m.lockHeld.Observe(held.Seconds()) }

func (o lockObserver) Lost(_ time.Duration, forced bool) {
	o.m.lockLost.WithLabelValues(strconv.FormatBool(forced)).Inc()
}

func (o lockObserver) InDoubt() { o.m.lockDoubtful.Inc() }

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

// Missing counts a submodule that a published tree lacks.
func (m *Metrics) Missing(class events.Class) {
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
