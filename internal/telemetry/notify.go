package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type notify struct {
	total    *prometheus.CounterVec
	duration prometheus.Histogram
}

func newNotify(r registrar) notify {
	return notify{
		total: r.counters("lockstep_notify_total", "Attempts to notify apps and dropped notifications, by result.", "result"),
		duration: r.histogram("lockstep_notify_duration_seconds", "Duration of attempts to notify apps.",
			prometheus.ExponentialBuckets(0.005, 2.5, 10)), // 5 ms to 19 s
	}
}

// Notification counts an attempt to notify an app, or a dropped notification.
func (m *Metrics) Notification(result string, took time.Duration) {
	m.notify.total.WithLabelValues(result).Inc()
	m.notify.duration.Observe(took.Seconds())
}

var outboxItems = prometheus.NewDesc("lockstep_notify_outbox_items",
	"Notifications waiting to be sent in the whole deployment. Every notifier exports the same value; "+
		"absent if Redis does not answer.", nil, nil)

// Outbox exports the number of waiting notifications, read on each scrape, until stop is called. Only one may be
// registered at a time.
func (m *Metrics) Outbox(read func() (int64, error)) (stop func()) {
	return m.registry.gauges(func(gauge gauge) {
		if n, err := read(); err == nil {
			gauge(outboxItems, float64(n))
		}
	}, outboxItems)
}
