// Package telemetry provides Prometheus metrics, OpenTelemetry traces, and a log handler that adds trace IDs. Metrics
// have no repository label, because a deployment may have a million repositories.
package telemetry

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lockstep/events/stream"
	"lockstep/internal/state"
	"lockstep/locking"
)

// Metrics are the metrics of one process. Its methods are safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry

	deliveries   *prometheus.CounterVec
	attempts     *prometheus.HistogramVec
	inFlight     *prometheus.GaugeVec
	finished     *prometheus.HistogramVec
	lapsed       *prometheus.CounterVec
	lockWaiters  prometheus.Gauge
	lockWait     *prometheus.HistogramVec
	lockHeld     prometheus.Histogram
	lockLost     *prometheus.CounterVec
	lockDoubtful prometheus.Counter
	changes      *prometheus.CounterVec
	circuits     *prometheus.CounterVec
	freed        prometheus.Counter
	trims        trims
	notify       notify
	schedules    schedules
	work         work
}

// New returns metrics with a new registry.
func New() *Metrics {
	seconds := prometheus.ExponentialBuckets(0.001, 2.5, 14) // 1 ms to 2.5 min
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_messages_delivered_total", Help: "Messages delivered to a handler, by whether they were redelivered."}, []string{"stream", "again"}),
		attempts: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_message_attempts", Help: "Attempt number of delivered messages.", Buckets: []float64{1, 2, 3, 4, 6, 8, 12, 16}}, []string{"stream"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_messages_in_flight", Help: "Messages read but not finished."}, []string{"stream"}),
		finished: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_message_seconds", Help: "Time from the delivery of a message to its end, by outcome.", Buckets: seconds}, []string{"stream", "outcome"}),
		lapsed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_claims_total", Help: "Messages claimed from consumers that crashed or hung."}, []string{"stream"}),
		lockWaiters: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lockstep_lock_waiters", Help: "Requests waiting for a lease."}),
		lockWait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_lock_wait_seconds", Help: "Time spent waiting for a lease, by result.", Buckets: seconds}, []string{"result"}),
		lockHeld: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lockstep_lock_held_seconds", Help: "Time that leases were held.", Buckets: seconds}),
		lockLost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_lock_lost_total", Help: "Leases lost to another holder or released by force."}, []string{"forced"}),
		lockDoubtful: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_lock_in_doubt_total", Help: "Leases not renewed in time."}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_changes_total", Help: "Processed changes by outcome and error class."}, []string{"outcome", "class"}),
		circuits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_circuit_transitions_total", Help: "Transitions of circuit breakers, by new phase."}, []string{"to"}),
		freed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_patrol_freed_bytes_total", Help: "Bytes on disk freed by this process's patrols."}),
	}
	m.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector(),
		m.deliveries, m.attempts, m.inFlight, m.finished, m.lapsed, m.lockWaiters, m.lockWait, m.lockHeld, m.lockLost, m.lockDoubtful,
		m.changes, m.circuits, m.freed)
	m.trims = newTrims(m.registry)
	m.notify = newNotify(m.registry)
	m.schedules = newSchedules(m.registry)
	m.work = newWork(m.registry)
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Change counts the outcome of a change. class is the class of its error, or "".
func (m *Metrics) Change(outcome, class string) { m.changes.WithLabelValues(outcome, class).Inc() }

// Circuit counts a transition of a circuit breaker.
func (m *Metrics) Circuit(to state.CircuitPhase) { m.circuits.WithLabelValues(string(to)).Inc() }

// Stream returns the observer of a subscriber.
func (m *Metrics) Stream() stream.Observer { return streamObserver{m} }

type streamObserver struct{ m *Metrics }

func (o streamObserver) Delivered(name string, attempt, _ int) {
	again := "no"
	if attempt > 1 {
		again = "yes"
	}
	o.m.deliveries.WithLabelValues(name, again).Inc()
	o.m.attempts.WithLabelValues(name).Observe(float64(attempt))
	o.m.inFlight.WithLabelValues(name).Inc()
}

func (o streamObserver) Finished(name string, outcome stream.Outcome, took time.Duration) {
	o.m.inFlight.WithLabelValues(name).Dec()
	o.m.finished.WithLabelValues(name, string(outcome)).Observe(took.Seconds())
}

func (o streamObserver) Lapsed(name, _ string) { o.m.lapsed.WithLabelValues(name).Inc() }

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
