package hosts

import (
	"math/rand/v2"
	"time"
)

const (
	stuckAfter = time.Second      // without an answer, for a request to a host that does not answer
	quietAfter = 30 * time.Second // a host that has answered within this time answers
)

// roomLocked returns 0 if this process may have another request to a host in flight, else when to try again; see Limits in
// the package documentation. A stuck request does not count because it costs a connection and no work.
func (b *Budgets) roomLocked(host string, h *hostState) (retryAfter time.Duration) {
	soon, total := time.Second+rand.N(2*time.Second), b.cfg.Total
	if len(b.permits)-b.asking < total/4 && len(b.permits) < total {
		return 0
	}
	now := b.now()
	busy, tried, stuck, triedHere, stuckHere := 0, 0, 0, false, false
	for p := range b.permits {
		here := p.req.Host == host
		switch {
		case p.asking || p.good != nil || b.hosts[p.req.Host].answers(now):
			busy++
		case now.Sub(p.granted) > stuckAfter:
			stuck++
			stuckHere = stuckHere || here
		default:
			busy++
			tried++
			triedHere = triedHere || here
		}
	}
	answers := h.answers(now)
	switch {
	case stuckHere:
		return 5*time.Second + rand.N(10*time.Second) // the host probably hangs
	case busy >= total,
		answers && h.inUse >= 2 && busy >= total*3/4,
		!answers && (triedHere || tried >= total/2 || stuck >= 2*total):
		return soon
	}
	return 0
}

// answers reports whether the host has answered recently.
func (h *hostState) answers(now time.Time) bool { return now.Sub(h.answered) < quietAfter }
