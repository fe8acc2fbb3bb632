package serve

import "net/http"

// Bounds of what requests hold in memory: lines of large requests until they are answered, and of lists of
// refs until they are sent.
const (
	linesStep = 4096      // lines are counted in steps, so that those of small requests are not
	heldLines = 4_000_000 // of all requests, of about 60 bytes each; of those of one sender a quarter
)

// hold counts lines that the request holds until release. It fails if too many are held.
func (x *exchange) hold(lines int) error {
	lines -= lines % linesStep
	if lines == 0 {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.lines+lines > heldLines || x.linesOf[x.sender]+lines > heldLines/4 {
		return &Refusal{http.StatusServiceUnavailable, "too many large requests at a time: try again"}
	}
	x.lines += lines
	x.linesOf[x.sender] += lines
	x.held += lines
	return nil
}

// release ends what hold has counted.
func (x *exchange) release() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lines -= x.held
	if x.linesOf[x.sender] -= x.held; x.linesOf[x.sender] == 0 {
		delete(x.linesOf, x.sender)
	}
	x.held = 0
}
