package wire

import "sync"

// maxRemotes is the maximum number of remotes to remember something of.
const maxRemotes = 10_000

// remotes remembers by URL which remotes speak protocol 2 over HTTP, so that requests are sent to them without asking for the
// capabilities first. It contains nothing that depends on a credential. It is safe for concurrent use.
type remotes struct {
	mu sync.Mutex
	of map[string]protocol2
}

// recall returns what the remote offers, or nil if that is unknown.
func (m *remotes) recall(url string) *protocol2 {
	m.mu.Lock()
	defer m.mu.Unlock()
	offered, ok := m.of[url]
	if !ok {
		return nil
	}
	return &offered
}

// remember stores what the remote offers, or forgets it if offered is nil.
func (m *remotes) remember(url string, offered *protocol2) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if offered == nil {
		delete(m.of, url)
		return
	}
	if m.of == nil {
		m.of = map[string]protocol2{}
	}
	if _, known := m.of[url]; !known && len(m.of) >= maxRemotes {
		for any := range m.of {
			delete(m.of, any)
			break
		}
	}
	m.of[url] = *offered
}
