package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type notify struct {
	total    *prometheus.CounterVec
	duration prometheus.Histogram
}

func newNotify(registry *prometheus.Registry) notify {
	n := notify{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_notify_total", Help: "Attempts to notify apps and dropped notifications, by result."}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lockstep_notify_duration_seconds", Help: "Duration of attempts to notify apps.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2.5, 10)}), // 5 ms to 19 s
	}
	registry.MustRegister(n.total, n.duration)
	return n
}

// Notification counts an attempt to notify an app, or a dropped notification.
func (m *Metrics) Notification(result string, took time.Duration) {
	m.notify.total.WithLabelValues(result).Inc()
	m.notify.duration.Observe(took.Seconds())
}

var outboxItems = prometheus.NewDesc("lockstep_notify_outbox_items",
	"Notifications waiting to be sent in the whole deployment. Every notifier exports the same value; absent if Redis does not answer.", nil, nil)

// outbox is a collector that reads the outbox length on each scrape.
type outbox struct{ read func() (int64, error) }

// Describe implements [prometheus.Collector].
func (*outbox) Describe(to chan<- *prometheus.Desc) { to <- outboxItems }

// Collect implements [prometheus.Collector].
func (o *outbox) Collect(to chan<- prometheus.Metric) {
	if n, err := o.read(); err == nil {
		to <- prometheus.MustNewConstMetric(outboxItems, prometheus.GaugeValue, float64(n))
	}
}

// Outbox exports the number of waiting notifications until stop is called. Only one may be registered at a time.
func (m *Metrics) Outbox(read func() (int64, error)) (stop func()) {
	o := &outbox{read}
	m.registry.MustRegister(o)
	return func() { m.registry.Unregister(o) }
}
