package telemetry

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep/internal/hosts"
)

const (
	maxHosts    = 100     // values of the label host, besides otherHosts
	otherHosts  = "other" // all other hosts together
	maxHostName = 253     // bytes; longer names are no host names
)

// HostRequests returns the observer of the limits of requests to hosts.
func (m *Metrics) HostRequests() hosts.Observer { return m.hosts }

// hostObserver counts the requests of this process to remote hosts.
type hostObserver struct {
	granted, refused, answers *prometheus.CounterVec

	mu    sync.Mutex
	known map[string]bool // hosts with a label of their own
}

func newHostObserver(r registrar) *hostObserver {
	return &hostObserver{
		granted: r.counters("lockstep_host_requests_granted_total", "Requests to a host that got a permit.", "host"),
		refused: r.counters("lockstep_host_requests_refused_total", "Requests to a host that must wait, by reason.",
			"host", "reason"),
		answers: r.counters("lockstep_host_answers_total", "Answers of a host to requests, by outcome.", "host", "outcome"),
		known:   make(map[string]bool),
	}
}

func (o *hostObserver) Granted(host string) { o.granted.WithLabelValues(o.label(host)).Inc() }

func (o *hostObserver) Refused(host string, reason hosts.Reason) {
	o.refused.WithLabelValues(o.label(host), strings.ReplaceAll(string(reason), " ", "_")).Inc()
}

func (o *hostObserver) Answered(host string, outcome hosts.Outcome) {
	o.answers.WithLabelValues(o.label(host), string(outcome)).Inc()
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
	cache  cache[[]hosts.Host]
}

// NewHosts returns Hosts that read with reader.
func NewHosts(reader hosts.Reader) *Hosts { return &Hosts{reader: reader} }

// List returns the hosts used within a day by name, cached for 5 s. It ignores cancellation of ctx and times
// out after 2 s.
func (h *Hosts) List(ctx context.Context) ([]hosts.Host, error) {
	return h.cache.get(ctx, sharedTTL, h.reader.List)
}

var (
	perHost = []string{"host"}

	hostLimit = prometheus.NewDesc("lockstep_host_requests_limit",
		"Requests that may be in flight to a host, over all processes.", perHost, nil)
	hostInUse = prometheus.NewDesc("lockstep_host_requests_in_flight",
		"Requests in flight to a host, over all processes.", perHost, nil)
	hostWaiting = prometheus.NewDesc("lockstep_host_waiting", "Repositories in the queue of a host.", perHost, nil)
	hostBlocked = prometheus.NewDesc("lockstep_host_blocked_seconds",
		"Time until the end of a host's block, or of the longest block of its credentials; 0 if there is none.", perHost, nil)
	hostLimited = prometheus.NewDesc("lockstep_host_limited_credentials", "Credentials that a host has told to wait.",
		perHost, nil)
)

// hostFigures are the values of the gauges of one host.
type hostFigures struct {
	name                           string
	limit, inUse, waiting, limited int
	blocked                        time.Duration
}

// collect exports nothing if Redis does not answer: lockstep_streams_up says so.
func (h *Hosts) collect(gauge gauge) {
	all, err := h.List(context.Background())
	if err != nil {
		return
	}
	for _, f := range figuresOf(all, time.Now()) {
		gauge(hostLimit, float64(f.limit), f.name)
		gauge(hostInUse, float64(f.inUse), f.name)
		gauge(hostWaiting, float64(f.waiting), f.name)
		gauge(hostBlocked, f.blocked.Seconds(), f.name)
		gauge(hostLimited, float64(f.limited), f.name)
	}
}

// figuresOf returns the figures of the 100 hosts that matter most, and the others together: sums, and the
// longest block.
func figuresOf(all []hosts.Host, now time.Time) []hostFigures {
	figures := make([]hostFigures, 0, len(all))
	for _, h := range all {
		f := hostFigures{name: h.Name, limit: h.Limit, inUse: h.InUse, waiting: h.Waiting, limited: len(h.Limited)}
		if _, until := h.Why(); !until.IsZero() {
			f.blocked = max(0, until.Sub(now))
		}
		figures = append(figures, f)
	}
	slices.SortStableFunc(figures, func(a, b hostFigures) int {
		return cmp.Or(cmp.Compare(b.blocked, a.blocked), cmp.Compare(b.waiting, a.waiting), cmp.Compare(b.inUse, a.inUse))
	})
	var shown []hostFigures
	var rest *hostFigures
	for _, f := range figures {
		if len(shown) < maxHosts && labelable(f.name) && f.name != otherHosts {
			shown = append(shown, f)
			continue
		}
		if rest == nil {
			rest = &hostFigures{name: otherHosts}
		}
		rest.limit, rest.inUse, rest.waiting = rest.limit+f.limit, rest.inUse+f.inUse, rest.waiting+f.waiting
		rest.limited, rest.blocked = rest.limited+f.limited, max(rest.blocked, f.blocked)
	}
	if rest != nil {
		shown = append(shown, *rest)
	}
	return shown
}

// ExportHosts adds the limits of hosts to the metrics. It must be called at most once.
func (m *Metrics) ExportHosts(h *Hosts) {
	m.registry.gauges(h.collect, hostLimit, hostInUse, hostWaiting, hostBlocked, hostLimited)
}
