package wire

import "sync"

// maxRemotes is the maximum number of remembered remotes.
const maxRemotes = 10_000

// remotes remembers, by URL, which remotes speak protocol 2 over HTTP, so that requests to them need not ask for the
// capabilities first. It contains nothing that depends on a credential. It is safe for concurrent use.
type remotes struct {
	mu      sync.Mutex
	offered map[string]*protocol2 // not modified
}

// recall returns the capabilities of the remote, or nil if unknown.
func (m *remotes) recall(url string) *protocol2 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.offered[url]
}

// remember stores the capabilities of the remote, and forgets those of any other one if there are too many.
func (m *remotes) remember(url string, offered *protocol2) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.offered == nil {
		m.offered = map[string]*protocol2{}
	}
	if len(m.offered) >= maxRemotes && m.offered[url] == nil {
		for any := range m.offered {
			delete(m.offered, any)
			break
		}
	}
	m.offered[url] = offered
}

// forget removes the capabilities of the remote.
func (m *remotes) forget(url string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.offered, url)
}
