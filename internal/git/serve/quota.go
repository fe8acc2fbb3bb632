package serve

import (
	"net/http"
	"sync"
)

// quota bounds a resource of all requests, and how much of it those of one sender have.
type quota struct {
	limit, share int64

	mu   sync.Mutex
	used int64
	by   map[string]int64 // by sender
}

func newQuota(limit, share int64) *quota {
	return &quota{limit: limit, share: share, by: map[string]int64{}}
}

// take takes n, or nothing if there is not as much. It reports which.
func (q *quota) take(sender string, n int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.used+n > q.limit || q.by[sender]+n > q.share {
		return false
	}
	q.used += n
	q.by[sender] += n
	return true
}

// give returns n of what take has taken.
func (q *quota) give(sender string, n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.used -= n
	if q.by[sender] -= n; q.by[sender] == 0 {
		delete(q.by, sender)
	}
}

// Bounds of what requests hold in memory: lines of large requests until they are answered, and of lists of
// refs until they are sent.
const (
	linesStep = 4096      // lines are counted in steps, so that those of small requests are not
	heldLines = 4_000_000 // of all requests, of about 60 bytes each; of those of one sender a quarter
)

// hold counts lines that the request holds until release. It fails if too many are held.
func (x *exchange) hold(lines int) error {
	held := int64(lines - lines%linesStep)
	if !x.lines.take(x.sender, held) {
		return &Refusal{http.StatusServiceUnavailable, "too many large requests at a time: try again"}
	}
	x.held += held
	return nil
}

// release ends what hold has counted.
func (x *exchange) release() {
	x.lines.give(x.sender, x.held)
	x.held = 0
}
