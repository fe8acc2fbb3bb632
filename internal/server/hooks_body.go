package server

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"
)

const (
	firstBuffer = 1 << 10  // bytes that are not charged; every connection has buffers of that order
	largeBuffer = 64 << 10 // bytes; below, a full buffer grows fourfold, above it doubles

	bodyPatience = 5 * time.Second  // for a body without progress
	bodyRate     = 32 << 10         // bytes per second that prolong it
	bodyTimeout  = 30 * time.Second // for the whole body
	drainTimeout = time.Second      // for the rest of a refused body
)

var (
	errTooLong  = errors.New("the body is too long")
	errNoMemory = errors.New("no memory for the body")
	errTooSlow  = errors.New("the body is too slow")
)

// body is the body of a request while it is read.
type body struct {
	w      http.ResponseWriter
	r      *http.Request
	memory *budget
	source string
	sender netip.Prefix

	reserved int // bytes
}

// release releases the memory of the body. It must be called once the body is no longer needed, even after an error.
func (b *body) release() {
	b.memory.release(b.source, b.sender, b.reserved)
	b.reserved = 0
}

// read reads the body. It reserves memory in proportion to what has arrived, whatever Content-Length says,
// and gives up on a body that makes no progress: it may pause for 5 s in all, and for longer the more it has
// sent, but not beyond 30 s.
func (b *body) read() ([]byte, error) {
	if b.r.ContentLength > maxHook {
		return nil, errTooLong
	}
	end := maxHook + 1 // one more byte than allowed, to detect longer bodies
	if b.r.ContentLength >= 0 {
		end = int(b.r.ContentLength)
	}
	from, control, start := http.MaxBytesReader(b.w, b.r.Body, maxHook), http.NewResponseController(b.w), time.Now()
	defer func() { _ = control.SetReadDeadline(start.Add(bodyTimeout)) }() // else it would cancel the request's context
	text := make([]byte, 0, min(firstBuffer, end))
	for {
		if len(text) == end && b.r.ContentLength >= 0 {
			return text, nil
		}
		if len(text) == cap(text) {
			larger, err := b.grow(text, end)
			if err != nil {
				return nil, err
			}
			text = larger
		}
		patience := min(bodyTimeout, bodyPatience+time.Duration(len(text))*time.Second/bodyRate)
		_ = control.SetReadDeadline(start.Add(patience)) // test recorders have none
		n, err := from.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		switch {
		case errors.Is(err, io.EOF) && b.r.ContentLength < 0:
			return text, nil
		case errors.Is(err, io.EOF) && len(text) < end:
			return nil, io.ErrUnexpectedEOF
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, errTooSlow
		case err != nil && !errors.Is(err, io.EOF):
			if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
				return nil, errTooLong
			}
			return nil, err
		}
	}
}

// grow returns text in a larger buffer, at most end long.
func (b *body) grow(text []byte, end int) ([]byte, error) {
	factor := 2
	if len(text) < largeBuffer {
		factor = 4
	}
	size := min(factor*len(text), end)
	if !b.memory.reserve(b.source, b.sender, size) {
		return nil, errNoMemory
	}
	larger := make([]byte, len(text), size)
	copy(larger, text)
	b.release()
	b.reserved = size
	return larger, nil
}

// refuseUnread prepares the refusal of a request whose body has not been read: the connection closes after
// the response, and waits only briefly for the rest of the body.
func refuseUnread(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTimeout))
}

// share is how much of what stays free one source may hold, and one sender of what stays free to its source. With 4, a
// lone sender can fill three quarters of the budget, and any number of greedy ones leaves room for the next.
const share = 4

// budget limits the memory of all request bodies, and divides it between sources and their senders: the largest
// holders are refused first. It is safe for concurrent use.
type budget struct {
	limit int64

	mu      sync.Mutex
	used    int64
	sources map[string]*sourceUse // without those that hold nothing
}

type sourceUse struct {
	used    int64
	senders map[netip.Prefix]int64
}

func newBudget(limit int64) *budget { return &budget{limit: limit, sources: map[string]*sourceUse{}} }

// reserve reserves bytes for a sender's delivery to a source, unless the budget, the source's or the sender's share is
// used up.
func (b *budget) reserve(source string, sender netip.Prefix, bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := int64(bytes)
	of := b.sources[source]
	if of == nil {
		of = &sourceUse{senders: map[netip.Prefix]int64{}}
	}
	free := share*(b.limit-b.used-n) - of.used - n // the remaining share of the source
	if free < 0 || of.senders[sender]+n > share*free {
		return false
	}
	b.used += n
	of.used += n
	of.senders[sender] += n
	b.sources[source] = of
	return true
}

func (b *budget) release(source string, sender netip.Prefix, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.sources[source]
	if of == nil {
		return
	}
	n := int64(bytes)
	b.used -= n
	if of.used -= n; of.used == 0 {
		delete(b.sources, source)
	}
	if of.senders[sender] -= n; of.senders[sender] == 0 {
		delete(of.senders, sender)
	}
}
