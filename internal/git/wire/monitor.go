package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	dialTimeout   = 10 * time.Second
	tlsTimeout    = 10 * time.Second
	headerTimeout = 60 * time.Second // a big server may count objects for long before it answers
	idleTimeout   = 60 * time.Second // without a byte in an answer's body
	maxAdvert     = 64 << 20         // bytes in a list of refs
	maxPrologue   = 8 << 20          // bytes of an answer's lines before its pack
	patience      = 10 * time.Minute // for an answer's body, before it has to keep the pace
	minPace       = 16 << 10         // bytes a second
)

// statusError is an HTTP status that is neither success nor a redirect.
type statusError struct {
	code    int
	limited bool // we have asked too often
}

func (e statusError) Error() string { return fmt.Sprintf("HTTP status %d", e.code) }

// IsStatus reports whether err is an HTTP status of the remote's.
func IsStatus(err error) bool {
	_, ok := errors.AsType[statusError](err)
	return ok
}

// statusOf returns the error of an answer. A server that is asked too often may say so with a 403, too.
func statusOf(res *http.Response) statusError {
	limited := res.Header.Get("Retry-After") != "" || res.Header.Get("X-RateLimit-Remaining") == "0"
	return statusError{res.StatusCode, res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusForbidden && limited}
}

var (
	errTooLong = errors.New("the answer is longer than allowed")
	errRefs    = errors.New("the list of refs is longer than allowed")
	errLines   = errors.New("the answer has more lines before its pack than allowed")
	errWebPage = errors.New("the answer is a web page")
	errIdle    = fmt.Errorf("no data for %v", idleTimeout)
	errTrickle = fmt.Errorf("less than %d KiB a second for %v", minPace>>10, patience)
)

// monitor carries one operation. It bounds what is read, in bytes and in silence, and remembers the first
// thing that went wrong: go-git flattens errors on their way up, and reads the whole body of a refusal
// into its text.
type monitor struct {
	next    http.RoundTripper // of a remote over HTTP
	maxPack int64

	mu     sync.Mutex
	fault  error
	head   []byte // the beginning of the latest answer
	bodies []io.Closer
}

// maxHead is how much of an answer is kept to look for an error in Git's own protocol.
const maxHead = 4 << 10

// RoundTrip implements [http.RoundTripper].
func (w *monitor) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	res, err := w.next.RoundTrip(req.WithContext(ctx))
	switch {
	case err != nil:
	case res.StatusCode >= 400:
		err = statusOf(res)
	case res.StatusCode < 300 && strings.HasPrefix(res.Header.Get("Content-Type"), "text/html"):
		err = errWebPage
	}
	if err != nil {
		if res != nil {
			_ = res.Body.Close()
		}
		cancel(nil)
		return nil, w.remember(err)
	}
	res.Body = w.bound(ctx, cancel, res.Body, strings.HasSuffix(req.URL.Path, "/info/refs"))
	return res, nil
}

// bound bounds an answer, a list of refs or else a pack: body must end once cancel has been called, which
// is for ctx.
func (w *monitor) bound(ctx context.Context, cancel context.CancelCauseFunc, body io.ReadCloser, listing bool) *boundedBody {
	b := &boundedBody{
		body: body, wire: w, ctx: ctx, left: w.maxPack, beyond: errTooLong, due: time.Now().Add(patience),
		stop: func() { cancel(nil) },
		idle: time.AfterFunc(idleTimeout, func() { cancel(errIdle) }),
	}
	if listing {
		b.left, b.beyond = maxAdvert, errRefs
	} else {
		b.prologue = &prologue{left: maxPrologue}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.head = nil
	w.bodies = append(w.bodies, b)
	return b
}

// close closes all answers' bodies. go-git leaves one open when it cannot make sense of it.
func (w *monitor) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, body := range w.bodies {
		_ = body.Close()
	}
	w.bodies = nil
}

func (w *monitor) remember(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == nil {
		w.fault = err
	}
	return err
}

// reset forgets what went wrong before.
func (w *monitor) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = nil
}

// keepHead keeps the beginning of an answer.
func (w *monitor) keepHead(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.head = append(w.head, p[:min(len(p), maxHead-len(w.head))]...)
}

// errLine returns the error that the latest answer begins with, or "".
func (w *monitor) errLine() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errLine(w.head)
}

// firstFault returns the first thing that went wrong on the wire, or nil.
func (w *monitor) firstFault() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fault
}

// boundedBody is an answer's body that ends in an error when it is too long, falls silent or trickles.
type boundedBody struct {
	body io.ReadCloser
	wire *monitor
	ctx  context.Context // of this answer alone, cancelled by idle
	stop func()
	idle *time.Timer
	left int64
	due  time.Time // by when there must be more, or the end; each byte puts it off

	beyond   error     // that it is longer
	prologue *prologue // nil for a list of refs
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, b.wire.remember(b.beyond)
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	if time.Now().After(b.due) {
		return 0, b.wire.remember(errTrickle)
	}
	n, err := b.body.Read(p)
	b.left -= int64(n)
	b.wire.keepHead(p[:n])
	b.due = b.due.Add(time.Duration(n) * time.Second / minPace)
	b.idle.Reset(idleTimeout)
	if b.left < 0 {
		return 0, b.wire.remember(b.beyond)
	}
	if b.prologue != nil && !b.prologue.admits(p[:n]) {
		return 0, b.wire.remember(errLines)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		if errors.Is(context.Cause(b.ctx), errIdle) {
			err = errIdle
		}
		err = b.wire.remember(err)
	}
	return n, err
}

func (b *boundedBody) Close() error {
	b.idle.Stop()
	b.stop()
	return b.body.Close()
}

// prologue follows an answer's pkt-lines. Those that are not of a side-band, where the pack is, name commits,
// and go-git keeps them all in memory.
type prologue struct {
	left  int    // bytes that such lines may still have
	begun []byte // the line that has begun, up to its fifth byte, which is that of a side-band
	rest  int    // bytes to the line's end
	ended bool   // what follows is no pkt-line, but a pack without a side-band, or nonsense
}

// admits reports whether the lines are not too many with what comes next.
func (l *prologue) admits(p []byte) bool {
	for len(p) > 0 && !l.ended && l.left >= 0 {
		if skipped := min(l.rest, len(p)); skipped > 0 {
			l.rest -= skipped
			p = p[skipped:]
			continue
		}
		l.begun = append(l.begun, p[0])
		p = p[1:]
		if len(l.begun) >= 4 {
			l.begin()
		}
	}
	return l.left >= 0
}

// begin takes in the beginning of a line.
func (l *prologue) begin() {
	length, err := strconv.ParseUint(string(l.begun[:4]), 16, 16)
	switch {
	case err != nil:
		l.ended = true
	case length <= 4: // a flush, or an empty line
		l.left -= len(l.begun)
		l.begun = l.begun[:0]
	case len(l.begun) == 5:
		if band := l.begun[4]; band == 0 || band > 3 {
			l.left -= int(length)
		}
		l.rest, l.begun = int(length)-5, l.begun[:0]
	}
}
