package watch

import (
	"slices"
	"sync"

	"lockstep/events"
)

const (
	largeSet     = 16 << 10 // bytes of documents
	maxLargeSets = 8
)

// largeSets has large sets of watches, which are valid while their version is current. Each sync and each
// post reads the watches of its repository, and thousands of views are megabytes that take 50 ms to decode
// and compile.
type largeSets struct {
	mu   sync.Mutex
	sets map[string]Set // by repository
}

func (l *largeSets) get(repo events.RepoPath) (Set, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	set, ok := l.sets[repo.Key()]
	set.Watches = slices.Clone(set.Watches)
	return set, ok
}

// put replaces the set of a repository, and evicts another one if there are too many.
func (l *largeSets) put(repo events.RepoPath, set Set, size int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sets, repo.Key())
	if size < largeSet {
		return
	}
	if l.sets == nil {
		l.sets = map[string]Set{}
	}
	for other := range l.sets {
		if len(l.sets) < maxLargeSets {
			break
		}
		delete(l.sets, other)
	}
	set.Watches = slices.Clone(set.Watches)
	l.sets[repo.Key()] = set
}
