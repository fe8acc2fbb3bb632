package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"lockstep/internal/git/pkt"
)

// response writes to a client that must keep receiving. It leaves its last deadline to the rest of the response.
type response struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	end     time.Time // when all of the request must be there
	inPack  bool      // part of a pack may be sent
	broken  bool      // break the connection, the only way to signal an incomplete pack
}

func newResponse(w http.ResponseWriter, stall, most time.Duration) *response {
	return &response{ResponseWriter: w, control: http.NewResponseController(w), stall: stall, end: time.Now().Add(most)}
}

// contentType sets the headers of a response of Git's protocol.
func (w *response) contentType(name string) {
	header := w.Header()
	header.Set("Content-Type", name)
	header.Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
}

// progressRead gives the client time for the next part of its request. A server that cannot set deadlines has its own.
func (w *response) progressRead() {
	at := time.Now().Add(w.stall)
	if at.After(w.end) {
		at = w.end
	}
	_ = w.control.SetReadDeadline(at)
}

// Write sends at most 64 KiB at a time, and fails if the client does not receive that in time.
func (w *response) Write(b []byte) (n int, err error) {
	for n < len(b) {
		_ = w.control.SetWriteDeadline(time.Now().Add(w.stall))
		part, err := w.ResponseWriter.Write(b[n:min(len(b), n+copyChunk)])
		if n += part; err != nil {
			return n, err
		}
	}
	return n, nil
}

func (w *response) flush() error {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.stall))
	return w.control.Flush()
}

// endRead removes the read deadline of the request. Otherwise the server would treat a client that sends
// nothing more as gone.
func (w *response) endRead() { _ = w.control.SetReadDeadline(time.Time{}) }

// Bands of a pack.
const (
	bandData  = 1
	bandError = 3
)

// keepAlive is how often a client that waits for a pack gets an empty line.
const keepAlive = 5 * time.Second

var streamBuffers = sync.Pool{New: func() any { return new([pkt.MaxLine]byte) }}

// stream sends a pack, in lines of at most sideband bytes, or as it is if sideband is 0.
func (x *exchange) stream(pack *packReader, sideband int) error {
	defer pack.close()
	buffer := streamBuffers.Get().(*[pkt.MaxLine]byte)
	defer streamBuffers.Put(buffer)
	x.out.inPack = true
	for {
		room := buffer[:]
		if sideband > 0 {
			room = buffer[5:sideband]
		}
		n, err := pack.read(x.ctx, room, keepAlive)
		switch {
		case errors.Is(err, io.EOF) && sideband > 0:
			_, err := io.WriteString(x.out, "0000")
			return err
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errIdle):
			n = 0
		case err != nil:
			x.breakOff(err, sideband)
			return err
		}
		x.Bytes += int64(n)
		if sideband > 0 {
			copy(buffer[:], fmt.Sprintf("%04x%c", n+5, bandData))
			n += 5
		}
		if _, err := x.out.Write(buffer[:n]); err != nil {
			return err
		}
		if err := x.out.flush(); err != nil {
			return err
		}
	}
}

// breakOff signals to the client that a pack is incomplete.
func (x *exchange) breakOff(err error, sideband int) {
	if sideband == 0 {
		x.out.broken = true
		return
	}
	text := clientText(err)
	fmt.Fprintf(x.out, "%04x%c%s\n0000", len(text)+6, bandError, text)
}

// answer negotiates, and sends the pack if there is one. write is of the protocol: it writes what comes
// before the pack, and ready is false if there is to be no pack yet.
func (x *exchange) answer(
	req *fetchRequest, write func(n *negotiation, w *pkt.Writer) (p plan, ready bool, err error),
) error {
	n, err := negotiate(x.ctx, x.repo, req)
	if err != nil {
		return err
	}
	t, w := &turn{handler: x.Handler, sender: x.sender}, &pkt.Writer{}
	p, ready, err := func() (p plan, ready bool, err error) {
		defer func() {
			if err != nil || !ready {
				n.close()
				t.end()
			}
		}()
		if err := t.begin(x.ctx); err != nil {
			return p, false, err
		}
		return write(n, w)
	}()
	req.wants, req.haves, req.shallow, x.repo = nil, nil, nil, nil // the answer may take an hour
	x.release()
	switch {
	case err != nil:
		return err
	case !ready:
		return x.result(w)
	}
	return x.send(n, p, w, t)
}

// send makes or joins the pack of a plan and sends it. head is what comes before it. It closes n, and ends
// the turn of its caller: what n has read stays in memory until the pack is made.
func (x *exchange) send(n *negotiation, p plan, head *pkt.Writer, t *turn) error {
	sideband := n.req.sideband
	pack, joined, err := x.shared.join(p.key(n.store.Dirs), x.sender, t.rest, func(
		ctx context.Context, write func([]byte) (int, error),
	) error {
		defer t.end()
		defer n.close()
		return p.write(ctx, n, writerFunc(write))
	})
	if joined || err != nil {
		n.close()
		t.end()
	}
	if err != nil {
		return err
	}
	x.Shared = joined
	if err := x.result(head); err != nil {
		pack.close()
		return err
	}
	return x.stream(pack, sideband)
}

// write writes the pack of a plan.
func (p *plan) write(ctx context.Context, n *negotiation, w io.Writer) error {
	s, err := newSelection(ctx, n.objects, p.thin)
	if err != nil {
		return err
	}
	if err := s.run(p); err != nil {
		return err
	}
	format := n.repo.Format
	p.difference, n.history, n.reach, n.repo = difference{}, nil, nil, nil // may be large, and a pack may take an hour
	return writePack(s, p.ofs, format, w)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
