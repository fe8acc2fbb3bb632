package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep/internal/follow"
	"lockstep/internal/schedule"
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
		r.gauges(func(gauge gauge) {
			gauge("lockstep_webhook_spool_bytes", "Bytes of webhooks in the spool that wait for Redis.", float64(spooled()))
		})
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

// Notification counts an attempt to notify an app, or a dropped notification.
func (m *Metrics) Notification(result string, took time.Duration) {
	m.notified.WithLabelValues(result).Inc()
	m.notifying.Observe(took.Seconds())
}

// Outbox exports the number of waiting notifications, read on each scrape, until stop is called. Only one may be
// registered at a time.
func (m *Metrics) Outbox(read func() (int64, error)) (stop func()) {
	return m.registry.gauges(func(gauge gauge) {
		if n, err := read(); err == nil {
			gauge("lockstep_notify_outbox_items", "Notifications waiting to be sent in the whole deployment. "+
				"Every notifier exports the same value; absent if Redis does not answer.", float64(n))
		}
	})
}

// Polls counts n scheduled polls.
func (m *Metrics) Polls(n int) { m.polls.Add(float64(n)) }

// Reconciled counts the findings of a reconciliation.
func (m *Metrics) Reconciled(report schedule.Report) {
	for _, finding := range report.Findings {
		m.drift.WithLabelValues(string(finding.Kind)).Inc()
	}
}

// Follower exports the status of a follower until stop is called.
func (m *Metrics) Follower(read func() follow.Status) (stop func()) {
	return m.registry.gauges(func(gauge gauge) {
		f := read()
		gauge("lockstep_follower_connected", "Whether this follower is connected to its reader.", flag(f.Connected))
		gauge("lockstep_follower_repositories", "Repositories that this follower keeps, as of its last list.",
			float64(f.Repos))
		gauge("lockstep_follower_behind", "Refs that the reader has and this follower has not published yet, "+
			"or whose command has not succeeded.", float64(f.Behind))
		gauge("lockstep_follower_lag_seconds",
			"Time since this follower last had everything that its reader has; 0 if it has it now.", f.Lag().Seconds())
	})
}

// Reading are the metrics of a reader.
type Reading struct {
	requests *prometheus.CounterVec
	sent     *prometheus.CounterVec
	packs    *prometheus.CounterVec
}

// Reading registers the metrics of a reader. It must be called at most once. streams returns the number of
// open streams of results.
func (m *Metrics) Reading(streams func() int) *Reading {
	r := m.registry
	r.gauges(func(gauge gauge) { gauge("lockstep_reader_streams", "Open streams of results.", float64(streams())) })
	return &Reading{
		requests: r.counters("lockstep_reader_requests_total",
			"Requests of readers, by what they asked for and the class of the status.", "kind", "status"),
		sent: r.counters("lockstep_reader_sent_bytes_total", "Bytes of responses to readers.", "kind"),
		packs: r.counters("lockstep_reader_packs_total",
			"Packs sent, by whether they were made for another request at the same time.", "shared"),
	}
}

// Request counts a request that is answered with an HTTP status.
func (r *Reading) Request(kind string, status int) {
	r.requests.WithLabelValues(kind, strconv.Itoa(status/100)+"xx").Inc()
}

// Sent counts bytes of a response.
func (r *Reading) Sent(kind string, bytes int) { r.sent.WithLabelValues(kind).Add(float64(bytes)) }

// Pack counts a pack that was sent.
func (r *Reading) Pack(shared bool) { r.packs.WithLabelValues(yesNo(shared)).Inc() }

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
