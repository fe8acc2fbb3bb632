package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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
	patience      = 10 * time.Minute // for an answer's body, before it has to keep the pace
	minPace       = 16 << 10         // bytes a second
)

// newTransport returns the connection pool that all of a volume's remotes share.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   tlsTimeout,
		ResponseHeaderTimeout: headerTimeout,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConnsPerHost:   8,
		ForceAttemptHTTP2:     true,
	}
}

// statusError is an HTTP status that is neither success nor a redirect.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("HTTP status %d", int(e)) }

var (
	errTooLong = errors.New("the answer is longer than allowed")
	errIdle    = fmt.Errorf("no data for %v", idleTimeout)
	errTrickle = fmt.Errorf("less than %d KiB a second for %v", minPace>>10, patience)
)

// wire carries the requests of one operation. It bounds what is read, in bytes and in silence, and
// remembers the first thing that went wrong: go-git flattens errors on their way up, and reads the
// whole body of a refusal into its text.
type wire struct {
	next    http.RoundTripper
	maxPack int64

	mu     sync.Mutex
	fault  error
	bodies []io.Closer
}

// RoundTrip implements [http.RoundTripper].
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	res, err := w.next.RoundTrip(req.WithContext(ctx))
	if err == nil && res.StatusCode >= 400 {
		_ = res.Body.Close()
		err = statusError(res.StatusCode)
	}
	if err != nil {
		cancel(nil)
		return nil, w.remember(err)
	}
	limit := w.maxPack
	if strings.HasSuffix(req.URL.Path, "/info/refs") {
		limit = maxAdvert
	}
	body := &boundedBody{
		body: res.Body, wire: w, ctx: ctx, left: limit, due: time.Now().Add(patience),
		stop: func() { cancel(nil) },
		idle: time.AfterFunc(idleTimeout, func() { cancel(errIdle) }),
	}
	res.Body = body
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bodies = append(w.bodies, body)
	return res, nil
}

// close closes all answers' bodies. go-git leaves one open when it cannot make sense of it.
func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, body := range w.bodies {
		_ = body.Close()
	}
	w.bodies = nil
}

func (w *wire) remember(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == nil {
		w.fault = err
	}
	return err
}

// reset forgets what went wrong before.
func (w *wire) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = nil
}

// firstFault returns the first thing that went wrong on the wire, or nil.
func (w *wire) firstFault() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fault
}

// boundedBody is an answer's body that ends in an error when it is too long, falls silent or trickles.
type boundedBody struct {
	body io.ReadCloser
	wire *wire
	ctx  context.Context // the request's own, cancelled by idle
	stop func()
	idle *time.Timer
	left int64
	due  time.Time // by when there must be more, or the end; each byte puts it off
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, b.wire.remember(errTooLong)
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	if time.Now().After(b.due) {
		return 0, b.wire.remember(errTrickle)
	}
	n, err := b.body.Read(p)
	b.left -= int64(n)
	b.due = b.due.Add(time.Duration(n) * time.Second / minPace)
	b.idle.Reset(idleTimeout)
	if b.left < 0 {
		return 0, b.wire.remember(errTooLong)
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
