package dashboard

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"lockstep/internal/operate"
	"lockstep/internal/state"
)

const (
	// repositories, about 200 bytes each; beyond, lists are neither sorted nor searched by parts of names.
	maxIndexed   = 200_000
	indexBatch   = 1000
	indexTimeout = time.Minute // of a build
)

// repoIndex is a list of all repositories, sorted by path, for sorting, searching and paging. Redis has no
// such order. It is built in the background while visitors need it, at most a twentieth of the time. It is
// safe for concurrent use.
type repoIndex struct {
	page  func(ctx context.Context, prefix, after string, limit int) (operate.RepoPage, error)
	start func(func(ctx context.Context)) // runs a function in the background
	limit int                             // repositories

	mu       sync.Mutex
	building chan struct{} // closed at the end of the build in progress; nil if there is none
	last     *indexed
	err      error
}

// indexed is a complete index. It must not be changed.
type indexed struct {
	all                     []state.Summary // by lower-cased path
	keys                    []string        // lower-cased paths
	failing, never, removed int
	at                      time.Time     // begin of the build
	spent                   time.Duration // on it
	full                    bool          // there are more than the limit: the index has nothing
	missing                 []string      // cells that did not answer
}

// get returns the last index. If that is older than a second and than 20 times what its build took, the next is built in
// the background. Without an index, or with one that is older than a minute and than 40 times that, get waits for the
// next, and returns nil if that takes too long.
func (x *repoIndex) get(ctx context.Context, wait time.Duration) (*indexed, error) {
	x.mu.Lock()
	last := x.last
	if last != nil && time.Since(last.at) > max(time.Minute, 40*last.spent) {
		last = nil
	}
	if x.building == nil && (last == nil || time.Since(last.at) > max(time.Second, 20*last.spent)) {
		x.building = make(chan struct{})
		x.start(x.build)
	}
	building := x.building
	x.mu.Unlock()
	if last != nil {
		return last, nil
	}
	select {
	case <-building:
	case <-time.After(wait):
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.last, x.err
}

func (x *repoIndex) build(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, indexTimeout)
	defer cancel()
	next, err := x.read(ctx)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err = err; err == nil {
		x.last = next
	}
	close(x.building)
	x.building = nil
}

func (x *repoIndex) read(ctx context.Context) (*indexed, error) {
	next := &indexed{at: time.Now()}
	for cursor := ""; ; {
		page, err := x.page(ctx, "", cursor, indexBatch)
		if err != nil {
			return nil, err
		}
		for _, repo := range page.Repos {
			next.all = append(next.all, repo.Summary)
		}
		if page.Missing != "" {
			next.missing = append(next.missing, page.Missing)
		}
		if len(next.all) > x.limit {
			return &indexed{at: next.at, spent: time.Since(next.at), full: true}, nil
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	next.sort()
	next.spent = time.Since(next.at)
	return next, nil
}

// sort sorts the repositories, drops those that a scan returned twice, and counts them.
func (x *indexed) sort() {
	slices.SortFunc(x.all, func(a, b state.Summary) int {
		return cmp.Compare(strings.ToLower(a.Repo), strings.ToLower(b.Repo))
	})
	x.all = slices.CompactFunc(x.all, func(a, b state.Summary) bool { return strings.EqualFold(a.Repo, b.Repo) })
	x.keys = make([]string, len(x.all))
	for i, s := range x.all {
		x.keys[i] = strings.ToLower(s.Repo)
		for name, n := range map[string]*int{"failing": &x.failing, "never": &x.never, "removed": &x.removed} {
			if hasState(s, name) {
				*n++
			}
		}
	}
}

// fails reports whether a repository needs attention.
func fails(s state.Summary) bool {
	return len(s.Failing) > 0 || s.Circuit.Failures > 0 || len(s.Refused) > 0
}

// The orders of the list.
const (
	byFailures = "failures" // failing ones first, the newest failure first
	byOldest   = "oldest"   // by last sync
	byNewest   = "newest"
	bySize     = "size" // largest first
)

var repoOrders = [][2]string{{"", "name"}, {byFailures, "failing first"}, {byOldest, "last sync, oldest first"},
	{byNewest, "last sync, newest first"}, {bySize, "size"}}

// find returns the positions of the repositories that contain text and have the state, in the order.
func (x *indexed) find(text, only, order string, size func(string) (int64, bool)) []int {
	text = strings.ToLower(text)
	found := make([]int, 0, len(x.all))
	for i, key := range x.keys {
		if strings.Contains(key, text) && hasState(x.all[i], only) {
			found = append(found, i)
		}
	}
	var compare func(a, b int) int
	switch order {
	case byFailures:
		compare = func(a, b int) int { return lastFailure(x.all[b]).Compare(lastFailure(x.all[a])) }
	case byOldest:
		compare = func(a, b int) int { return x.all[a].Synced.Compare(x.all[b].Synced) }
	case byNewest:
		compare = func(a, b int) int { return x.all[b].Synced.Compare(x.all[a].Synced) }
	case bySize:
		bytes := map[int]int64{}
		for _, i := range found {
			bytes[i], _ = size(x.all[i].Repo)
		}
		compare = func(a, b int) int { return cmp.Compare(bytes[b], bytes[a]) }
	default:
		return found
	}
	slices.SortStableFunc(found, compare)
	return found
}

// hasState reports whether a repository has a state, or fails with a class. "" is any.
func hasState(s state.Summary, only string) bool {
	switch only {
	case "failing":
		return fails(s)
	case "never":
		return s.Synced.IsZero() && s.Removed == ""
	case "removed":
		return s.Removed != ""
	}
	return only == "" || slices.ContainsFunc(s.Failing, func(t state.Trouble) bool { return string(t.Class) == only })
}

// lastFailure returns when a repository failed last, zero if it does not fail, and the oldest time if that is unknown.
func lastFailure(s state.Summary) time.Time {
	if len(s.Failing) > 0 {
		return s.Failing[0].At
	}
	if fails(s) {
		return time.Unix(1, 0)
	}
	return time.Time{}
}
