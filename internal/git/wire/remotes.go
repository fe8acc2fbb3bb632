package wire

import "sync"

// maxRemotes is the maximum number of remembered remotes.
const maxRemotes = 10_000

// remotes remembers, by URL, which remotes speak protocol 2 over HTTP, so that requests to them need not ask for the
// capabilities first, and whether speculation succeeded. It contains nothing that depends on a credential. It is safe for
// concurrent use.
type remotes struct {
	mu sync.Mutex
	of map[string]*remembered
}

type remembered struct {
	offered     *protocol2 // nil if unknown; not modified
	speculation speculation
}

// recall returns the capabilities of the remote, or nil if unknown.
func (m *remotes) recall(url string) *protocol2 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.of[url]; known != nil {
		return known.offered
	}
	return nil
}

// remember stores the capabilities of the remote, or removes them if offered is nil.
func (m *remotes) remember(url string, offered *protocol2) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if offered != nil || m.of[url] != nil {
		m.lockedOf(url).offered = offered
	}
}

// speculate calls update with the speculation about a remote.
func (m *remotes) speculate(url string, update func(*speculation)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	update(&m.lockedOf(url).speculation)
}

// lockedOf returns the entry of a remote. It forgets any other one if there are too many.
func (m *remotes) lockedOf(url string) *remembered {
	if known := m.of[url]; known != nil {
		return known
	}
	if m.of == nil {
		m.of = map[string]*remembered{}
	}
	if len(m.of) >= maxRemotes {
		for any := range m.of {
			delete(m.of, any)
			break
		}
	}
	m.of[url] = &remembered{}
	return m.of[url]
}
