package intake

import (
	"container/list"
	"sync"

	"lockstep/internal/watch"
)

// cacheWeight limits a cache: each remote counts one, plus one for each of its watches. The limit allows ten thousand
// remotes with nine watches each, a few dozen megabytes.
const cacheWeight = 100_000

// cache holds the watches of the most recently used remotes. They may be outdated: the registry checks the version.
// Remotes without watches are not cached, because their deliveries make no call that would check the version.
type cache struct {
	most int

	mu       sync.Mutex
	weight   int
	byRemote map[string]*list.Element // of *cached
	recent   *list.List               // most recently used first
}

type cached struct {
	remote  string
	watches watch.RemoteWatches
}

func (c *cached) weight() int { return 1 + len(c.watches.Watches) }

func newCache(most int) *cache {
	return &cache{most: most, byRemote: map[string]*list.Element{}, recent: list.New()}
}

func (c *cache) get(remote string) (watch.RemoteWatches, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byRemote[remote]
	if !ok {
		return watch.RemoteWatches{}, false
	}
	c.recent.MoveToFront(e)
	return e.Value.(*cached).watches, true
}

func (c *cache) put(remote string, watches watch.RemoteWatches) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(remote)
	if len(watches.Watches) == 0 {
		return
	}
	entry := &cached{remote, watches}
	c.byRemote[remote] = c.recent.PushFront(entry)
	for c.weight += entry.weight(); c.weight > c.most; {
		c.drop(c.recent.Back().Value.(*cached).remote)
	}
}

// drop removes a remote. The caller must hold mu.
func (c *cache) drop(remote string) {
	if e, ok := c.byRemote[remote]; ok {
		delete(c.byRemote, remote)
		c.weight -= c.recent.Remove(e).(*cached).weight()
	}
}
