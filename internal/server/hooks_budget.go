package server

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

const initialBuffer = 64 << 10 // bytes

var (
	errTooLong  = errors.New("the body is too long")
	errNoMemory = errors.New("no memory for the body")
)

// budget limits the memory used by all request bodies. It is safe for concurrent use.
type budget struct {
	limit int64
	used  atomic.Int64
}

func newBudget(limit int64) *budget { return &budget{limit: limit} }

func (b *budget) reserve(bytes int) bool {
	if b.used.Add(int64(bytes)) > b.limit {
		b.used.Add(-int64(bytes))
		return false
	}
	return true
}

// read reads a request's body. It reserves memory as data arrives, starting with 64 KiB and doubling, instead of
// trusting Content-Length. The caller must call release when it no longer needs the body, even after an error.
func (b *budget) read(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	reserved := 0
	release = func() { b.used.Add(-int64(reserved)) }
	if r.ContentLength > maxHook {
		return nil, release, errTooLong
	}
	end := maxHook + 1 // one more byte than allowed, to detect longer bodies
	if r.ContentLength >= 0 {
		end = int(r.ContentLength)
	}
	from := http.MaxBytesReader(w, r.Body, maxHook)
	for {
		size := min(max(2*len(body), initialBuffer), end)
		if !b.reserve(size) {
			return nil, release, errNoMemory
		}
		larger := make([]byte, size)
		n := copy(larger, body)
		b.used.Add(-int64(reserved))
		reserved, body = size, larger
		more, err := io.ReadFull(from, body[n:])
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			if r.ContentLength >= 0 {
				return nil, release, io.ErrUnexpectedEOF
			}
			return body[:n+more], release, nil
		case err != nil:
			if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
				return nil, release, errTooLong
			}
			return nil, release, err
		case len(body) == end && r.ContentLength >= 0:
			return body, release, nil
		}
	}
}
