package hosts

import "time"

const (
	stuckAfter = time.Second      // without an answer, for a request to a host that does not answer
	quietAfter = 30 * time.Second // a host that has answered within this time answers
)

// hasRoomLocked reports whether this process may have another request to a host in flight; see Limits in the package
// documentation. A stuck request does not count because it costs a connection and no work.
func (b *Budgets) hasRoomLocked(host string, h *hostState) bool {
	total := b.cfg.Total
	if len(b.permits)-b.asking < total/4 {
		return len(b.permits) < total
	}
	now := b.now()
	busy, tried, stuck, here := 0, 0, 0, 0
	for p := range b.permits {
		switch {
		case p.asking || p.good != nil || b.hosts[p.req.Host].answers(now):
			busy++
			continue
		case now.Sub(p.granted) > stuckAfter:
			stuck++
		default:
			busy++
			tried++
		}
		if p.req.Host == host {
			here++
		}
	}
	switch {
	case busy >= total:
		return false
	case h.answers(now):
		return h.inUse < 2 || busy < total*3/4
	}
	return here == 0 && tried < total/2 && stuck < 2*total
}

// answers reports whether the host has answered recently.
func (h *hostState) answers(now time.Time) bool { return now.Sub(h.answered) < quietAfter }
