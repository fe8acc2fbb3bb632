package intake

import (
	"container/list"
	"sync"

	"lockstep/internal/watch"
)

// cacheWeight is what a cache holds: each remote counts for one and for each watch of it. So it is
// ten thousand remotes with nine apps each, or fewer with more; some tens of megabytes.
const cacheWeight = 100_000

// cache remembers what was watched at a remote's place when it was last looked up, of those looked up most recently.
// What it says may be old: the registry checks the version. That nobody watches a remote is not
// remembered, since nothing is asked of the registry then that could tell.
type cache struct {
	most int

	mu     sync.Mutex
	weight int
	places map[string]*list.Element // of *remembered
	recent *list.List               // the most recent in front
}

type remembered struct {
	place  string
	placed watch.RemoteWatches
}

func (r *remembered) weight() int { return 1 + len(r.placed.Watches) }

func newCache(most int) *cache {
	return &cache{most: most, places: map[string]*list.Element{}, recent: list.New()}
}

func (c *cache) get(place string) (watch.RemoteWatches, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.places[place]
	if !ok {
		return watch.RemoteWatches{}, false
	}
	c.recent.MoveToFront(e)
	return e.Value.(*remembered).placed, true
}

func (c *cache) put(place string, placed watch.RemoteWatches) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(place)
	if len(placed.Watches) == 0 {
		return
	}
	r := &remembered{place, placed}
	c.places[place] = c.recent.PushFront(r)
	for c.weight += r.weight(); c.weight > c.most; {
		c.drop(c.recent.Back().Value.(*remembered).place)
	}
}

// drop forgets a place. The caller holds mu.
func (c *cache) drop(place string) {
	if e, ok := c.places[place]; ok {
		delete(c.places, place)
		c.weight -= c.recent.Remove(e).(*remembered).weight()
	}
}
