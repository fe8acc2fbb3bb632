package server

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

const firstPart = 64 << 10 // bytes of a body that there is room for before any has come

var (
	errTooLong = errors.New("the body is too long")
	errNoRoom  = errors.New("no room for the body")
)

// budget bounds the bytes of all bodies in memory.
type budget struct {
	most int64
	used atomic.Int64
}

func newBudget(most int64) *budget { return &budget{most: most} }

func (b *budget) take(bytes int) bool {
	if b.used.Add(int64(bytes)) > b.most {
		b.used.Add(-int64(bytes))
		return false
	}
	return true
}

// read reads a request's body. It takes room for what has come, and not for what a sender says is still to
// come, since saying so costs nothing: 64 KiB at first, then twice what there is. The caller calls
// release when it does not need the body any more, and after an error, too.
func (b *budget) read(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	taken := 0
	release = func() { b.used.Add(-int64(taken)) }
	if r.ContentLength > maxHook {
		return nil, release, errTooLong
	}
	end := maxHook + 1 // one more than there may be tells that there is more
	if r.ContentLength >= 0 {
		end = int(r.ContentLength)
	}
	from := http.MaxBytesReader(w, r.Body, maxHook)
	for {
		size := min(max(2*len(body), firstPart), end)
		if !b.take(size) {
			return nil, release, errNoRoom
		}
		larger := make([]byte, size)
		n := copy(larger, body)
		b.used.Add(-int64(taken))
		taken, body = size, larger
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
