package telemetry

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

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
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lockstep_reader_streams", Help: "Open streams of results."}, func() float64 { return float64(streams()) }))
	return &Reading{
		requests: r.counters("lockstep_reader_requests_total",
			"Requests of readers, by what they asked for and the class of the status.", "kind", "status"),
		sent: r.counters("lockstep_reader_sent_bytes_total", "Bytes of responses to readers.", "kind"),
		packs: r.counters("lockstep_reader_packs_total",
			"Packs sent, by whether they were made for another request at the same time.", "shared"),
	}
}

// Request counts a request that was answered with an HTTP status and a number of bytes.
func (r *Reading) Request(kind string, status int, bytes int64) {
	r.requests.WithLabelValues(kind, strconv.Itoa(status/100)+"xx").Inc()
	r.Sent(kind, bytes)
}

// Sent counts bytes that were sent after the request was counted.
func (r *Reading) Sent(kind string, bytes int64) { r.sent.WithLabelValues(kind).Add(float64(bytes)) }

// Pack counts a pack that was sent.
func (r *Reading) Pack(shared bool) {
	text := "no"
	if shared {
		text = "yes"
	}
	r.packs.WithLabelValues(text).Inc()
}
