package dashboard

import (
	"net/netip"
	"sync"
	"time"
)

// So many wrong tokens a minute are looked at: from one address, of IPv6 from one network of 64 bits, and in all.
const (
	attemptsEach = 10
	attemptsAll  = 1000
)

// attempts counts wrong tokens, by the minute.
type attempts struct {
	now func() time.Time

	mu     sync.Mutex
	minute int64
	by     map[netip.Prefix]int // never more than attemptsAll
	all    int
}

func newAttempts() *attempts { return &attempts{now: time.Now, by: map[netip.Prefix]int{}} }

// allowed reports whether a token from there is looked at.
func (a *attempts) allowed(from netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn()
	return a.all < attemptsAll && a.by[network(from)] < attemptsEach
}

// failed counts a wrong one.
func (a *attempts) failed(from netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn()
	a.all++
	a.by[network(from)]++
}

// turn begins anew with each minute.
func (a *attempts) turn() {
	if minute := a.now().Unix() / 60; minute != a.minute {
		a.minute, a.all = minute, 0
		clear(a.by)
	}
}

func network(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // the zero Prefix for no address
	return p
}
