package wire

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	dialTimeout = 10 * time.Second
	tlsTimeout  = 10 * time.Second
	maxAdvert   = 64 << 20         // maximum bytes of a list of refs
	gracePeriod = 10 * time.Minute // time before minRate applies to a response body
	minRate     = 16 << 10         // minimum bytes per second
)

var (
	errTooLong     = errors.New("the response is too long")
	errTooManyRefs = errors.New("the list of refs is too long")
	errWebPage     = errors.New("the response is a web page")
	errLoginPage   = errors.New("the response is a page to log in")
	errTooSlow     = fmt.Errorf("less than %d KiB/s for %v", minRate>>10, gracePeriod)
)

// monitor carries the requests of one operation. It limits the size, idle time and rate of responses and records the
// first error, because net/http discards error types.
type monitor struct {
	next     http.RoundTripper // HTTP transport; nil for SSH
	maxPack  int64
	timeouts Timeouts // all set

	mu        sync.Mutex
	fault     error
	began     time.Time // start of the current request
	answer    Answer    // to the current request, without Err
	redirects int       // of the current request
	prefix    []byte    // start of the latest response
}

// maxPrefix is the number of bytes of a response kept to explain why it is invalid.
const maxPrefix = 4 << 10

// exchange carries one HTTP request, including its redirects.
type exchange struct {
	*monitor
	listing bool // the response is a list of refs
}

// RoundTrip implements [http.RoundTripper].
func (w exchange) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	first := w.timeouts.awaitFirst(cancel, w.listing)
	res, err := w.next.RoundTrip(req.WithContext(ctx))
	if res != nil {
		w.answered(res.StatusCode, res.Header)
	}
	switch {
	case err != nil:
		err = timeoutOr(ctx, err)
	case isRedirect(res.StatusCode):
		err = redirectFault(res, w.countRedirect())
	case res.StatusCode >= 300:
		err = statusOf(res, time.Now())
	case strings.HasPrefix(res.Header.Get("Content-Type"), "text/html"):
		err = pageFault(res)
	case req.Method == http.MethodGet && !strings.HasSuffix(req.URL.Path, infoRefsPath):
		err = errRedirectAway
	}
	if err != nil {
		if res != nil {
			_ = res.Body.Close()
		}
		first.Stop()
		cancel(nil)
		return nil, w.record(err)
	}
	res.Body = w.limit(ctx, cancel, first, res.Body, w.listing)
	return res, nil
}

// limit limits a response, either a list of refs or a pack. Reads of body must end once cancel, which cancels
// ctx, is called. first is the timer of [Timeouts.awaitFirst].
func (w *monitor) limit(
	ctx context.Context, cancel context.CancelCauseFunc, first *time.Timer, body io.ReadCloser, listing bool,
) *limitedBody {
	silent := &timeoutFault{"silence", w.timeouts.Silence}
	b := &limitedBody{
		body: body, wire: w, ctx: ctx, left: w.maxPack, tooLong: errTooLong, deadline: time.Now().Add(gracePeriod),
		stop: func() { cancel(nil) }, first: first,
		idle: time.AfterFunc(silent.limit, func() { cancel(silent) }),
	}
	b.idle.Stop() // until the first byte
	if listing {
		b.left, b.tooLong = maxAdvert, errTooManyRefs
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.prefix = nil
	return b
}

func (w *monitor) record(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == nil {
		w.fault = err
	}
	return err
}

// begin forgets the previous request, including its error.
func (w *monitor) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault, w.answer, w.began, w.redirects, w.prefix = nil, Answer{}, time.Now(), 0, nil
}

// countRedirect returns the number of redirects of the current request, including this one.
func (w *monitor) countRedirect() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.redirects++
	return w.redirects
}

// answered records a response to the current request.
func (w *monitor) answered(status int, header http.Header) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer.Status, w.answer.Header = status, header
	w.answer.Latency = cmp.Or(w.answer.Latency, time.Since(w.began))
}

func (w *monitor) latestAnswer() Answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.answer
}

// keepPrefix keeps the start of a response. Over SSH its first byte is the answer.
func (w *monitor) keepPrefix(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(p) > 0 && w.answer.Latency == 0 {
		w.answer.Latency = time.Since(w.began)
	}
	w.prefix = append(w.prefix, p[:min(len(p), maxPrefix-len(w.prefix))]...)
}

// start returns the start of the latest response.
func (w *monitor) start() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Clone(w.prefix)
}

// firstError returns the first recorded error, or nil.
func (w *monitor) firstError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fault
}

// limitedBody is a response body whose Read fails if it is too long, idle or too slow.
type limitedBody struct {
	body     io.ReadCloser
	wire     *monitor
	ctx      context.Context // of this response; cancelled by the timers
	stop     func()
	first    *time.Timer // runs until the first byte
	idle     *time.Timer // runs during each read after that
	begun    bool
	left     int64
	deadline time.Time // for more data; each byte extends it by 1/minRate
	tooLong  error
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, b.wire.record(b.tooLong)
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	if time.Now().After(b.deadline) {
		return 0, b.wire.record(errTooSlow)
	}
	if b.begun {
		b.idle.Reset(b.wire.timeouts.Silence)
	}
	n, err := b.body.Read(p)
	b.idle.Stop()
	if n > 0 {
		b.begun = true
		b.first.Stop()
	}
	b.left -= int64(n)
	b.wire.keepPrefix(p[:n])
	b.deadline = b.deadline.Add(time.Duration(n) * time.Second / minRate)
	if b.left < 0 {
		return 0, b.wire.record(b.tooLong)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.wire.record(timeoutOr(b.ctx, err))
	}
	return n, err
}

// drainTimeout limits the wait for the end of a response whose content is complete.
const drainTimeout = 100 * time.Millisecond

// drain reads the end of a response over HTTP, so that its connection can be used again. If the end does not come at
// once, Close closes the connection.
func drain(body io.Reader) {
	b, isHTTP := body.(*limitedBody)
	if !isHTTP {
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = b.body.Read(make([]byte, 1))
	}()
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
}

func (b *limitedBody) Close() error {
	b.first.Stop()
	b.idle.Stop()
	b.stop()
	return b.body.Close()
}
