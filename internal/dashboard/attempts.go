package dashboard

import (
	"net/netip"
	"sync"
	"time"

	"lockstep/internal/server"
)

// Limits on failed logins per minute.
const (
	maxAttemptsPerNetwork = 10 // per IPv4 address or IPv6 /64 network
	maxAttempts           = 1000
)

// attempts counts the failed logins of the current minute. It is safe for concurrent use.
type attempts struct {
	now func() time.Time

	mu         sync.Mutex
	minute     int64                // minutes since 1970
	perNetwork map[netip.Prefix]int // at most maxAttempts entries
	total      int
}

func newAttempts() *attempts {
	return &attempts{now: time.Now, perNetwork: map[netip.Prefix]int{}}
}

func (a *attempts) allowed(from netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.resetEachMinute()
	return a.total < maxAttempts && a.perNetwork[server.Network(from)] < maxAttemptsPerNetwork
}

func (a *attempts) failed(from netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.resetEachMinute()
	a.total++
	a.perNetwork[server.Network(from)]++
}

func (a *attempts) resetEachMinute() {
	if minute := a.now().Unix() / 60; minute != a.minute {
		a.minute, a.total = minute, 0
		clear(a.perNetwork)
	}
}
