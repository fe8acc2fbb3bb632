package telemetry

import (
	"context"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep/internal/cache"
	"lockstep/internal/hosts"
)

const (
	maxHosts    = 100     // values of the label host, besides otherHosts
	otherHosts  = "other" // all other hosts together
	maxHostName = 253     // bytes; longer names are no host names
)

// HostRequests returns the observer of requests to hosts.
func (m *Metrics) HostRequests() func(host string, o hosts.Outcome, r hosts.Reason) {
	return m.hosts.observe
}

// hostObserver counts the requests of this process to remote hosts.
type hostObserver struct {
	refused, answers *prometheus.CounterVec

	mu    sync.Mutex
	known map[string]bool // hosts with a label of their own
}

func newHostObserver(r registrar) *hostObserver {
	return &hostObserver{
		refused: r.counters("lockstep_host_requests_refused_total", "Changes that must wait for a host, by reason.",
			"host", "reason"),
		answers: r.counters("lockstep_host_answers_total", "Answers of a host to requests, by outcome.", "host", "outcome"),
		known:   make(map[string]bool),
	}
}

func (o *hostObserver) observe(host string, outcome hosts.Outcome, reason hosts.Reason) {
	if outcome != "" {
		o.answers.WithLabelValues(o.label(host), string(outcome)).Inc()
		return
	}
	o.refused.WithLabelValues(o.label(host), strings.ReplaceAll(string(reason), " ", "_")).Inc()
}

// label returns the host itself for the first 100 hosts of this process, and "other" for later ones.
func (o *hostObserver) label(host string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.known[host]:
	case len(o.known) >= maxHosts || !labelable(host):
		return otherHosts
	default:
		o.known[host] = true
	}
	return host
}

// labelable reports whether a host can be the value of a label.
func labelable(host string) bool { return len(host) <= maxHostName && utf8.ValidString(host) }

// Hosts reads the limits of requests to hosts on demand, caches them, and exports them as metrics. Every
// process exports the same values, so aggregate them with max, not sum. It is safe for concurrent use.
type Hosts struct {
	reader hosts.Reader
	cache  cache.Cache[[]hosts.Host]
}

// NewHosts returns Hosts that read with reader.
func NewHosts(reader hosts.Reader) *Hosts {
	return &Hosts{reader: reader, cache: cache.Cache[[]hosts.Host]{TTL: sharedTTL, Timeout: readTimeout}}
}

// List returns the hosts and credentials used within a day, cached for 5 s. The read does not end with ctx,
// but after 2 s.
func (h *Hosts) List(ctx context.Context) ([]hosts.Host, error) {
	return h.cache.Get(ctx, h.reader.List)
}

// collect exports nothing if Redis does not answer: lockstep_streams_up says so.
func (h *Hosts) collect(gauge gauge) {
	all, err := h.List(context.Background())
	if err != nil {
		return
	}
	for _, host := range labeled(all) {
		gauge("lockstep_host_waiting", "Repositories that are to ask again when it is their turn at a host.",
			float64(host.Waiting), "host", host.Host)
		gauge("lockstep_host_blocked_seconds",
			"Time until the end of the longest block of a host's credentials; 0 if there is none.",
			max(0, time.Until(host.Until).Seconds()), "host", host.Host)
		gauge("lockstep_host_limited_credentials", "Credentials that a host has told to wait, or does not answer.",
			float64(len(host.Limited)), "host", host.Host)
	}
}

// labeled returns the first 100 hosts, and the others together: sums, and the longest block.
func labeled(all []hosts.Host) (shown []hosts.Host) {
	rest := hosts.Host{Host: otherHosts}
	for _, h := range all {
		if len(shown) < maxHosts && labelable(h.Host) && h.Host != otherHosts {
			shown = append(shown, h)
			continue
		}
		rest.Waiting, rest.Limited = rest.Waiting+h.Waiting, append(rest.Limited, h.Limited...)
		if h.Until.After(rest.Until) {
			rest.Until = h.Until
		}
	}
	if len(shown) < len(all) {
		shown = append(shown, rest)
	}
	return shown
}

// ExportHosts adds the limits of hosts to the metrics. It must be called at most once.
func (m *Metrics) ExportHosts(h *Hosts) { m.registry.gauges(h.collect) }

// Limiter exports what this process has to do with hosts, until unexport is called.
func (m *Metrics) Limiter(load func() (inFlight, waiting map[string]int)) (unexport func()) {
	return m.registry.gauges(func(gauge gauge) {
		inFlight, waiting := load()
		for label, n := range m.hosts.byLabel(inFlight) {
			gauge("lockstep_host_requests_in_flight", "Requests of this process in flight to a host.", n, "host", label)
		}
		for label, n := range m.hosts.byLabel(waiting) {
			gauge("lockstep_host_requests_waiting", "Jobs of this process that wait for a host.", n, "host", label)
		}
	})
}

func (o *hostObserver) byLabel(figures map[string]int) map[string]float64 {
	sums := map[string]float64{}
	for host, n := range figures {
		sums[o.label(host)] += float64(n)
	}
	return sums
}
