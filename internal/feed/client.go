package feed

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"
)

// client is a response that results are sent in. Only the goroutine of the request uses its position and the response.
type client struct {
	w       http.ResponseWriter
	control *http.ResponseController
	app     string
	token   string
	at      Cursor
	inboxes []*inbox        // of each source
	ctx     context.Context // done when the stream has to end
	end     context.CancelFunc
	woken   chan struct{} // there may be results for it; has room for one
}

// Serve sends a client its position and then results, until the client leaves, may not read any more, or cannot get
// all results, and until Close is called. It returns an error if it has sent nothing.
func (f *Feed) Serve(w http.ResponseWriter, r *http.Request, who Client) error {
	c := &client{
		w: w, control: http.NewResponseController(w), app: who.App, token: who.Token, at: who.From,
		woken: make(chan struct{}, 1),
	}
	c.ctx, c.end = context.WithCancel(r.Context())
	defer c.end()
	if err := f.add(c); err != nil {
		return err
	}
	defer f.remove(c)
	ended := make(chan struct{})
	context.AfterFunc(c.ctx, func() {
		_ = c.control.SetWriteDeadline(time.Unix(1, 0)) // a write waits for a slow client
		close(ended)
	})
	defer func() {
		c.end()
		<-ended
		_ = c.control.SetWriteDeadline(time.Now().Add(endTimeout))
		_ = c.control.SetReadDeadline(time.Now().Add(endTimeout)) // of a body that was announced and never came
	}()
	_ = c.control.SetReadDeadline(time.Time{}) // that of the request would end the stream
	if f.write(c, f.cfg.Stall, positionFrame(c.at)) {
		f.send(c)
	}
	return nil
}

// endTimeout is how long a client may take to accept the end of its stream.
const endTimeout = time.Second

// send sends batches and heartbeats.
func (f *Feed) send(c *client) {
	// so that clients that come together do not all get heartbeats together
	beats := time.NewTimer(rand.N(f.cfg.Heartbeat))
	defer beats.Stop()
	for beat := false; c.ctx.Err() == nil; {
		more, waits := f.sendNext(c)
		if more {
			continue
		}
		if beat {
			frame := positionFrame(c.at)
			if waits && len(c.inboxes) > 1 { // a position says that all results before it were sent
				frame = []byte(":\n\n")
			}
			f.write(c, f.cfg.Stall, frame)
			beats.Reset(f.cfg.Heartbeat)
		}
		var retry <-chan time.Time
		if waits {
			retry = time.After(f.period())
		}
		beat = false
		select {
		case <-c.ctx.Done():
		case <-c.woken:
		case <-retry:
		case <-beats.C:
			beat = true // with the position after what has come meanwhile
		}
	}
}

// wake makes the client look for results.
func (c *client) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// sendNext sends a client the next results of each source. more reports that there may be more, and waits that results
// cannot be sent yet.
func (f *Feed) sendNext(c *client) (more, waits bool) {
	for _, in := range c.inboxes {
		if in.from.down.Load() { // the tail tries again
			waits = true
			continue
		}
		if entries, to, ok := in.take(f.cfg.Check); ok {
			f.deliver(c, in.from, entries, to, f.cfg.Stall)
			continue
		}
		last, err := f.catchUp(c, in)
		if c.ctx.Err() != nil {
			return false, false
		}
		more, waits = more || err == nil && !last, waits || err != nil
	}
	return more, waits
}

// catchUpStall limits how long a client that is behind may take to accept a batch: it uses one of the app's reads.
const catchUpStall = 10 * time.Second

// catchUp sends results that the client's inbox does not have, read from Redis. Once these are the last ones, the inbox
// gets all that follow.
func (f *Feed) catchUp(c *client, in *inbox) (last bool, err error) {
	err = f.reads.Run(c.ctx, c.app, func() error {
		select {
		case f.batches <- struct{}{}:
			defer func() { <-f.batches }()
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
		in.join() // first, so that it gets what comes after the batch
		next, err := in.from.after(c.ctx, c.at[in.from.Cell])
		if err != nil || !next.last {
			in.leave()
		}
		if err != nil {
			return err
		}
		last = next.last
		f.deliver(c, in.from, next.entries, next.to, min(f.cfg.Stall, catchUpStall))
		return nil
	})
	if errors.Is(err, errGone) {
		f.sendGone(c)
	}
	return last, err
}

// deliver sends those of entries that are for the client and that it does not have, and moves its position forward.
func (f *Feed) deliver(c *client, from *source, entries []*entry, to position, limit time.Duration) {
	at := c.at[from.Cell]
	var frames [][]byte
	for _, e := range entries {
		if !e.isFor(c.app) || e.at.entry.compare(at.entry) <= 0 {
			continue
		}
		id := e.id
		if id == nil {
			id = idLine(c.at.with(from.Cell, e.at))
		}
		frames = append(frames, id, e.frame)
	}
	if len(frames) > 0 && !f.write(c, limit, frames...) {
		return
	}
	if to.entry.compare(at.entry) > 0 {
		c.at = c.at.with(from.Cell, to)
	}
}

// sendGone tells a client that results are missing, and ends its stream.
func (f *Feed) sendGone(c *client) {
	ctx, cancel := context.WithTimeout(c.ctx, readTimeout)
	defer cancel()
	_, err := f.Locate(ctx, Start{Cursor: c.at.String()})
	if gone, ok := errors.AsType[*GoneError](err); ok {
		f.write(c, f.cfg.Stall, goneFrame(gone))
	}
	c.end()
}

// write writes frames to the client, or ends the stream. A client that does not accept them in time is cut off.
func (f *Feed) write(c *client, limit time.Duration, frames ...[]byte) bool {
	_ = c.control.SetWriteDeadline(time.Now().Add(limit))
	if c.ctx.Err() != nil { // the deadline may have replaced the one that ends the stream
		return false
	}
	var err error
	for _, frame := range frames {
		if err == nil {
			_, err = c.w.Write(frame)
		}
	}
	if err = errors.Join(err, c.control.Flush()); err != nil {
		c.end()
	}
	return err == nil
}

// positionFrame returns the event that tells a client its position. It dispatches nothing.
func positionFrame(at Cursor) []byte { return append(idLine(at), '\n') }

// goneFrame returns the event that tells a client that results after its position are missing. It has no ID:
// the next request with the last one is answered with 410.
func goneFrame(gone *GoneError) []byte {
	document, err := json.Marshal(map[string]string{"error": gone.Error(), "cursor": gone.End.String()})
	if err != nil {
		return nil // impossible: it has two strings
	}
	return append(append([]byte("event: gone\ndata: "), document...), "\n\n"...)
}
