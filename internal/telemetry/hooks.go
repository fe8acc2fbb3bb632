package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Hooks are the metrics of webhooks.
type Hooks struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	drained  *prometheus.CounterVec
}

// Hooks registers the metrics of webhooks. It must be called at most once. spooled returns the size of the
// spooled deliveries; nil means that there is no spool.
func (m *Metrics) Hooks(spooled func() (bytes int64)) *Hooks {
	r := m.registry
	h := &Hooks{
		requests: r.counters("lockstep_webhook_requests_total", "Webhook requests by outcome.", "forge", "outcome"),
		seconds: r.histograms("lockstep_webhook_duration_seconds", "Time from a webhook's headers to its response.",
			prometheus.ExponentialBuckets(0.0005, 2, 14), "forge"), // 0.5 ms to 4 s
		drained: r.counters("lockstep_webhook_spool_drained_total", "Webhooks removed from the spool, by outcome.",
			"outcome"),
	}
	if spooled != nil {
		m.registry.MustRegister(prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: "lockstep_webhook_spool_bytes",
				Help: "Bytes of webhooks in the spool that wait for Redis."},
			func() float64 { return float64(spooled()) }))
	}
	return h
}

// Request counts a webhook request. forge is "" if the source is unknown.
func (h *Hooks) Request(forge, outcome string, took time.Duration) {
	h.requests.WithLabelValues(forge, outcome).Inc()
	h.seconds.WithLabelValues(forge).Observe(took.Seconds())
}

// Drained counts a delivery removed from the spool.
func (h *Hooks) Drained(outcome string) { h.drained.WithLabelValues(outcome).Inc() }
