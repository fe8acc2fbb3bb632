package feed

import (
	"sync"
	"time"
)

const (
	maxWaiting      = 1000      // entries in an inbox
	maxWaitingBytes = 256 << 10 // their size
)

// inboxes are those of the clients that have got all results of a source so far. The zero value is ready to use.
type inboxes struct {
	mu    sync.Mutex
	to    position // of the last result that was put into them
	byApp map[string]map[*inbox]struct{}
}

// inbox has the results of a source that wait for a client, while it is one of the source's.
type inbox struct {
	from *source
	app  string
	wake func()

	entries []*entry // guarded by from.inboxes.mu, as is bytes
	bytes   int
}

// join has the inbox get what comes after this moment.
func (in *inbox) join() {
	all := &in.from.inboxes
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.byApp == nil {
		all.byApp = map[string]map[*inbox]struct{}{}
	}
	if all.byApp[in.app] == nil {
		all.byApp[in.app] = map[*inbox]struct{}{}
	}
	all.byApp[in.app][in] = struct{}{}
}

// leave has the inbox get nothing more, and empties it.
func (in *inbox) leave() {
	all := &in.from.inboxes
	all.mu.Lock()
	defer all.mu.Unlock()
	all.remove(in)
}

func (all *inboxes) remove(in *inbox) {
	in.entries, in.bytes = nil, 0
	if delete(all.byApp[in.app], in); len(all.byApp[in.app]) == 0 {
		delete(all.byApp, in.app)
	}
}

// take takes the entries, and returns the position after them. ok is false if some are missing, or if it was
// decided longer than fresh ago that the app may read them: its watch may have been removed since.
func (in *inbox) take(fresh time.Duration) (entries []*entry, to position, ok bool) {
	all := &in.from.inboxes
	all.mu.Lock()
	defer all.mu.Unlock()
	if _, ok := all.byApp[in.app][in]; !ok {
		return nil, position{}, false
	}
	entries = in.entries
	if in.app != "" && len(entries) > 0 && time.Since(entries[0].decided) > fresh {
		all.remove(in)
		return nil, position{}, false
	}
	in.entries, in.bytes = nil, 0
	return entries, all.to, true
}

// put puts results into the inboxes of the operator and of the apps that may read them.
func (all *inboxes) put(entries []*entry) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, e := range entries {
		all.to = e.at
		if e.frame == nil {
			continue
		}
		all.putOf("", e)
		for _, app := range e.audience {
			all.putOf(app, e)
		}
	}
}

// putOf puts a result into the inboxes of an app. One that is full misses it.
func (all *inboxes) putOf(app string, e *entry) {
	for in := range all.byApp[app] {
		in.wake()
		if len(in.entries) == maxWaiting || in.bytes > maxWaitingBytes {
			all.remove(in)
			continue
		}
		in.entries, in.bytes = append(in.entries, e), in.bytes+len(e.frame)
	}
}

// restart empties all inboxes: their clients compare their positions with the stream, of which this is the end.
func (all *inboxes) restart(end position) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.to = end
	for _, some := range all.byApp {
		for in := range some {
			in.wake()
			all.remove(in)
		}
	}
}
