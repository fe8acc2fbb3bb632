// Package telemetry counts what Lockstep does, for Prometheus, and traces it, for OpenTelemetry. No metric carries a
// repository's name: there may be a million of them.
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

// Metrics are one process's metrics. Its methods count, or are the observers that do.
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

// New makes metrics with a registry of their own.
func New() *Metrics {
	seconds := prometheus.ExponentialBuckets(0.001, 2.5, 14) // 1 ms to 2.5 min
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_messages_delivered_total", Help: "Messages handed to a handler, by whether they had been before."}, []string{"stream", "again"}),
		attempts: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_message_attempts", Help: "Which attempt a message was delivered for.", Buckets: []float64{1, 2, 3, 4, 6, 8, 12, 16}}, []string{"stream"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_messages_in_flight", Help: "Messages read and not finished."}, []string{"stream"}),
		finished: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_message_seconds", Help: "Time from delivery to its end, by how it ended.", Buckets: seconds}, []string{"stream", "outcome"}),
		lapsed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_claims_total", Help: "Messages taken over from a consumer that died or hung."}, []string{"stream"}),
		lockWaiters: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lockstep_lock_waiters", Help: "Requests for a lease that are not decided."}),
		lockWait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_lock_wait_seconds", Help: "Time that requests for a lease took, by outcome.", Buckets: seconds}, []string{"result"}),
		lockHeld: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lockstep_lock_held_seconds", Help: "Time for which leases were held.", Buckets: seconds}),
		lockLost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_lock_lost_total", Help: "Leases that turned out to be another's, or were taken away by force."}, []string{"forced"}),
		lockDoubtful: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_lock_in_doubt_total", Help: "Leases that could not be renewed in time."}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_changes_total", Help: "Changes worked on, by what became of them and the kind of fault."}, []string{"outcome", "class"}),
		circuits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_circuit_transitions_total", Help: "Circuit breakers that opened, were probed half-open, or closed."}, []string{"to"}),
		freed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_patrol_freed_bytes_total", Help: "Bytes on disk that patrols of this process have freed."}),
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

// Change counts one change's outcome; class is that of its error, or "".
func (m *Metrics) Change(outcome, class string) { m.changes.WithLabelValues(outcome, class).Inc() }

// Circuit counts a circuit breaker's change of phase.
func (m *Metrics) Circuit(to state.CircuitPhase) { m.circuits.WithLabelValues(string(to)).Inc() }

// Stream observes a subscriber.
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

// Locks observes a locker.
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
