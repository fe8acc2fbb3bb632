package feed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"
)

// client is a response that results are sent in. Only the goroutine of the request uses its position and the response.
type client struct {
	w       http.ResponseWriter
	control *http.ResponseController
	app     string
	token   string
	at      Cursor
	ctx     context.Context // done when the stream has to end
	end     context.CancelFunc
	woken   chan struct{} // there may be results for it; has room for one
}

// Serve sends a client its position and then results, until the client leaves, may not read any more, or cannot get
// all results, and until Close is called.
func (f *Feed) Serve(w http.ResponseWriter, r *http.Request, who Client) {
	c := &client{
		w: w, control: http.NewResponseController(w), app: who.App, token: who.Token, at: who.From,
		woken: make(chan struct{}, 1),
	}
	c.ctx, c.end = context.WithCancel(r.Context())
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
	if !f.add(c) {
		return
	}
	defer f.remove(c)
	if f.write(c, f.cfg.Stall, PositionFrame(c.at)) {
		f.send(c)
	}
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
			f.sendBeat(c, waits)
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

// batch is what is sent to a client at once: results of one source.
type batch struct {
	entries []entry // that the client gets
	bytes   int
	to      position // the client's position once it has them
	more    bool     // there may be more
	waits   bool     // the source cannot be read now
}

// add appends an entry.
func (b *batch) add(c *client, e entry) {
	if e.isFor(c) {
		b.entries = append(b.entries, e)
		b.bytes += len(e.frame)
	}
	b.to = e.at
	b.more = len(b.entries) == batchFrames || b.bytes >= batchBytes
}

// frames returns the frames of a batch for a client.
func (b *batch) frames(from *source, c *client) []byte {
	frames := make([][]byte, 0, 2*len(b.entries))
	for _, e := range b.entries {
		id := e.id
		if id == nil {
			id = idLine(c.at.with(from.Cell, e.at))
		}
		frames = append(frames, id, e.frame)
	}
	return bytes.Join(frames, nil)
}

// sendNext sends a batch of each source to a client. more reports that there may be more, and waits that results cannot
// be sent yet.
func (f *Feed) sendNext(c *client) (more, waits bool) {
	sources := f.tailed()
	for cell := range c.at {
		switch {
		case len(sources) == 0 || slices.ContainsFunc(sources, func(s *source) bool { return s.Cell == cell }):
		case slices.ContainsFunc(f.cfg.Sources(), func(s Source) bool { return s.Cell == cell }):
			waits = true // it was added, and is not tailed yet
		default:
			f.sendGone(c) // the cell is gone, perhaps with results that the client does not have
			return false, false
		}
	}
	for _, s := range sources {
		sent, err := f.sendFrom(c, s)
		if c.ctx.Err() != nil {
			return false, false
		}
		more, waits = more || sent.more, waits || sent.waits || err != nil
	}
	return more, waits
}

// sendFrom sends a batch of a source. more reports whether another one may follow.
func (f *Feed) sendFrom(c *client, s *source) (sent batch, err error) {
	at, ok := c.at[s.Cell]
	switch {
	case s.down.Load(): // the tail tries again
		return batch{waits: true}, nil
	case !ok:
		return f.begin(c, s)
	}
	sent, outdated, ok := s.next(c, at)
	if outdated {
		if err := s.renew(at); err != nil {
			return batch{}, err
		}
		sent, _, ok = s.next(c, at) // which may be outdated still, if Redis is slow
	}
	if !ok {
		return f.catchUp(c, s)
	}
	return f.deliver(c, s, sent, f.cfg.Stall), nil
}

// begin gives a client the position before the first result of a cell that was added, or did not answer, when
// its stream began.
func (f *Feed) begin(c *client, s *source) (batch, error) {
	if !slices.ContainsFunc(f.cfg.Sources(), s.is) { // removed, and tailed for a moment more
		return batch{}, nil
	}
	leave, ok := f.enter(c)
	if !ok {
		return batch{}, nil
	}
	defer leave()
	ctx, cancel := context.WithTimeout(c.ctx, readTimeout)
	defer cancel()
	first, read, err := s.first(ctx)
	switch {
	case err != nil:
		return batch{}, err
	case read.removed > 0:
		f.sendGone(c)
		return batch{}, nil
	}
	c.at = c.at.with(s.Cell, first)
	return batch{more: true}, nil
}

// catchUpStall limits how long a client that is behind may take to accept a batch: it uses one of the slots for reads.
const catchUpStall = 10 * time.Second

// deliver sends a batch. If that fails, the client is closed.
func (f *Feed) deliver(c *client, s *source, next batch, limit time.Duration) batch {
	if len(next.entries) > 0 && !f.write(c, limit, next.frames(s, c)) {
		return batch{}
	}
	if c.at[s.Cell] != next.to {
		c.at = c.at.with(s.Cell, next.to)
	}
	return next
}

// sendBeat sends the position. It means that all results before have been sent, so if some of several sources wait, a
// comment is sent.
func (f *Feed) sendBeat(c *client, waits bool) {
	if waits && len(f.tailed()) > 1 {
		f.write(c, f.cfg.Stall, []byte(":\n\n"))
		return
	}
	f.write(c, f.cfg.Stall, PositionFrame(c.at))
}

// catchUp sends results that the tail no longer keeps, read from Redis.
func (f *Feed) catchUp(c *client, s *source) (batch, error) {
	leave, ok := f.enter(c)
	if !ok {
		return batch{}, nil
	}
	defer leave()
	next, gone, err := f.readFor(c, s)
	switch {
	case gone:
		f.sendGone(c)
		return batch{}, nil
	case err != nil:
		return batch{}, err
	}
	return f.deliver(c, s, next, min(f.cfg.Stall, catchUpStall)), nil
}

// sendGone tells a client that results are missing, and ends its stream.
func (f *Feed) sendGone(c *client) {
	ctx, cancel := context.WithTimeout(c.ctx, readTimeout)
	defer cancel()
	if ends, err := f.Locate(ctx, Start{}); err == nil {
		f.write(c, f.cfg.Stall, goneFrame(&GoneError{ends}))
	}
	c.end()
}

// enter waits until a batch for a client may be read from Redis. ok is false if its stream has ended.
func (f *Feed) enter(c *client) (leave func(), ok bool) {
	f.mu.Lock()
	of := f.behind[c.app]
	if of == nil {
		of = make(chan struct{}, maxReadsApp)
		f.behind[c.app] = of
	}
	f.mu.Unlock()
	for i, slots := range []chan struct{}{of, f.reads} {
		select {
		case slots <- struct{}{}:
		case <-c.ctx.Done():
			if i > 0 {
				<-of
			}
			return nil, false
		}
	}
	return func() { <-f.reads; <-of }, true
}

// readFor reads a batch for a client from Redis. gone reports that results after its position are missing.
func (f *Feed) readFor(c *client, s *source) (next batch, gone bool, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, readTimeout)
	defer cancel()
	at := c.at[s.Cell]
	read, err := s.readAt(ctx, at.entry.String(), at)
	if err != nil || read.gone {
		return batch{}, read.gone, err
	}
	if len(read.entries) == 0 {
		return batch{to: read.end}, false, nil
	}
	entries, err := s.prepare(ctx, at, read)
	if err != nil {
		return batch{}, false, err
	}
	for _, e := range entries {
		next.add(c, e)
	}
	next.more = true
	return next, false, nil
}

// write writes frames to the client, or ends the stream. A client that does not accept them in time is cut off.
func (f *Feed) write(c *client, limit time.Duration, frames []byte) bool {
	_ = c.control.SetWriteDeadline(time.Now().Add(limit))
	if c.ctx.Err() != nil { // the deadline may have replaced the one that ends the stream
		return false
	}
	_, err := c.w.Write(frames)
	if err = errors.Join(err, c.control.Flush()); err != nil {
		c.end()
	}
	return err == nil
}

// PositionFrame returns the event that tells a client its position. It dispatches nothing.
func PositionFrame(at Cursor) []byte { return append(idLine(at), '\n') }

// goneFrame returns the event that tells a client that results after its position are missing. It has no ID:
// the next request with the last one is answered with 410.
func goneFrame(gone *GoneError) []byte {
	document, err := json.Marshal(map[string]string{"error": gone.Error(), "cursor": gone.End.String()})
	if err != nil {
		return nil // impossible: it has two strings
	}
	return append(append([]byte("event: gone\ndata: "), document...), "\n\n"...)
}
