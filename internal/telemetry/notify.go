package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// notify counts what became of notifications.
type notify struct {
	total    *prometheus.CounterVec
	duration prometheus.Histogram
}

func newNotify(registry *prometheus.Registry) notify {
	n := notify{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_notify_total", Help: "Attempts to notify apps, and notifications dropped, by what came of them."}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lockstep_notify_duration_seconds", Help: "Time that attempts to notify apps took.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2.5, 10)}), // 5 ms to 19 s
	}
	registry.MustRegister(n.total, n.duration)
	return n
}

// Notification counts an attempt to notify an app, by what came of it.
func (m *Metrics) Notification(result string, took time.Duration) {
	m.notify.total.WithLabelValues(result).Inc()
	m.notify.duration.Observe(took.Seconds())
}

var outboxItems = prometheus.NewDesc("lockstep_notify_outbox_items",
	"Notifications that wait to be sent, in all of the deployment. Each notifier exports the same; absent when Redis does not say.", nil, nil)

// outbox reads the length when it is asked for.
type outbox struct{ read func() (int64, error) }

// Describe is part of [prometheus.Collector].
func (*outbox) Describe(to chan<- *prometheus.Desc) { to <- outboxItems }

// Collect is part of [prometheus.Collector].
func (o *outbox) Collect(to chan<- prometheus.Metric) {
	if n, err := o.read(); err == nil {
		to <- prometheus.MustNewConstMetric(outboxItems, prometheus.GaugeValue, float64(n))
	}
}

// Outbox exports how many notifications wait until stop is called. There may be one at a time.
func (m *Metrics) Outbox(read func() (int64, error)) (stop func()) {
	o := &outbox{read}
	m.registry.MustRegister(o)
	return func() { m.registry.Unregister(o) }
}
