package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Hooks count webhooks.
type Hooks struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	drained  *prometheus.CounterVec
}

// Hooks makes and exports the metrics of webhooks. It is to be called once. spooled says how many deliveries
// are on disk, and how many bytes they count for; nil: there is no disk for them.
func (m *Metrics) Hooks(spooled func() (items int, bytes int64)) *Hooks {
	h := &Hooks{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_webhook_requests_total", Help: "Webhooks, by what became of them."}, []string{"forge", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_webhook_duration_seconds", Help: "Time from a webhook's headers to its answer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}, []string{"forge"}), // 0.5 ms to 4 s
		drained: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_webhook_spool_drained_total", Help: "Webhooks that have left the spool, by what became of them."}, []string{"outcome"}),
	}
	m.registry.MustRegister(h.requests, h.seconds, h.drained)
	if spooled != nil {
		m.registry.MustRegister(
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "lockstep_webhook_spool_deliveries", Help: "Webhooks on this process's disk that wait for Redis."},
				func() float64 { items, _ := spooled(); return float64(items) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "lockstep_webhook_spool_bytes", Help: "Bytes of webhooks on disk, as spool-max-bytes counts them."},
				func() float64 { _, bytes := spooled(); return float64(bytes) }))
	}
	return h
}

// Request counts a request to a source of a forge, "" for none that is known.
func (h *Hooks) Request(forge, outcome string, took time.Duration) {
	h.requests.WithLabelValues(forge, outcome).Inc()
	h.seconds.WithLabelValues(forge).Observe(took.Seconds())
}

// Drained counts a delivery that has left the spool.
func (h *Hooks) Drained(outcome string) { h.drained.WithLabelValues(outcome).Inc() }
