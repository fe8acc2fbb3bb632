package feed

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"lockstep/events"
)

// client is a connection that results are sent to. Only the goroutine that has set its state to sending uses
// its position and writes to its connection.
type client struct {
	conn    net.Conn
	app     string
	token   string
	release func()
	first   []byte // not sent yet
	at      Cursor // of the goroutine that sends

	state  atomic.Int32
	beat   atomic.Bool // a heartbeat is due
	retry  atomic.Bool // Redis did not answer
	closed atomic.Bool
	beatAt time.Time // guarded by [Feed.mu]
}

// States of a client.
const (
	idle    = iota
	sending // a goroutine sends
	woken   // and looks again when it is done
)

func (c *client) close() {
	if c.closed.Swap(true) {
		return
	}
	_ = c.conn.Close()
	if c.release != nil {
		c.release()
	}
}

// wake starts a goroutine that sends a client the results after its position.
func (f *Feed) wake(c *client) {
	for {
		switch state := c.state.Load(); {
		case state == woken:
			return
		case state == sending && c.state.CompareAndSwap(sending, woken):
			return
		case state == idle && c.state.CompareAndSwap(idle, sending):
			f.start(func() { f.send(c) })
			return
		}
	}
}

// start runs fn in a goroutine, unless the feed is closed.
func (f *Feed) start(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.work.Go(fn)
	}
}

// send sends batches until the client is up to date and was not woken meanwhile.
func (f *Feed) send(c *client) {
	for {
		for !c.closed.Load() && f.sendNext(c) {
		}
		if c.closed.Load() || c.state.CompareAndSwap(sending, idle) {
			return
		}
		c.state.Store(sending)
	}
}

// batch is what is sent to a client at once: results of one source.
type batch struct {
	entries []entry // that the client gets
	bytes   int
	to      position // the client's position once it has them
	more    bool     // there may be more
	waits   bool     // not all results of the source that are known can be sent yet
}

// add appends an entry, unless it must be held. The caller holds the lock.
func (b *batch) add(from *source, c *client, e entry) {
	if e.isFor(c) {
		if e.follows != nil && !from.feed.has(c, *e.follows) {
			b.waits = true
			return
		}
		b.entries = append(b.entries, e)
		b.bytes += len(e.frame)
	}
	b.to = e.at
	b.more = len(b.entries) == batchFrames || b.bytes >= batchBytes
}

// frames returns the frames of a batch for a client.
func (b *batch) frames(from *source, c *client) [][]byte {
	frames := make([][]byte, 0, 2*len(b.entries))
	for _, e := range b.entries {
		id := e.id
		if id == nil {
			id = idLine(c.at.with(from.Cell, e.at))
		}
		frames = append(frames, id, e.frame)
	}
	return frames
}

// has reports whether a client has the results of another cell up to that which is followed, or cannot get
// it. The caller holds the lock.
func (f *Feed) has(c *client, follows events.Follows) bool {
	entry, valid := parseEntry(follows.Entry)
	i := slices.IndexFunc(f.sources, func(s *source) bool { return s.Cell == follows.Cell && s.results == follows.Stream })
	if i < 0 || !valid {
		return true
	}
	at, ok := c.at[follows.Cell]
	if ok && at.entry.compare(entry) >= 0 {
		return true
	}
	if f.sources[i].awaited.compare(entry) < 0 {
		f.sources[i].awaited = entry
	}
	return f.sources[i].lost.compare(entry) >= 0
}

// sendNext sends a batch of each source to a client.
func (f *Feed) sendNext(c *client) (more bool) {
	if c.first != nil && !f.write(c, c.first) {
		return false
	}
	c.first = nil
	sources := f.tailed()
	waits := false
	for cell := range c.at {
		switch {
		case len(sources) == 0 || slices.ContainsFunc(sources, func(s *source) bool { return s.Cell == cell }):
		case slices.ContainsFunc(f.cfg.Sources(), func(s Source) bool { return s.Cell == cell }):
			waits = true // it was added, and is not tailed yet
		default:
			f.end(f.ctx, c) // the cell is gone, perhaps with results that the client does not have
			return false
		}
	}
	for _, s := range sources {
		sent, err := f.sendFrom(c, s)
		if c.closed.Load() {
			return false
		}
		more, waits = more || sent.more, waits || sent.waits || err != nil
	}
	if more {
		return true
	}
	if waits {
		c.retry.Store(true)
	}
	f.sendBeat(c, waits && len(sources) > 1)
	return false
}

// sendFrom sends a batch of a source. more reports whether another one may follow, of this source or of one
// that waited for it.
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
	leave, ok := f.enter(c.app)
	if !ok {
		return batch{}, nil
	}
	defer leave()
	ctx, cancel := context.WithTimeout(f.ctx, readTimeout)
	defer cancel()
	first, read, err := s.first(ctx)
	switch {
	case err != nil:
		return batch{}, err
	case read.removed > 0:
		f.end(ctx, c)
		return batch{}, nil
	}
	c.at = c.at.with(s.Cell, first)
	return batch{more: true}, nil
}

// catchUpStall limits how long a client that is behind may take to accept a batch: it uses one of the slots for reads.
const catchUpStall = 10 * time.Second

// deliver sends a batch. If that fails, the client is closed.
func (f *Feed) deliver(c *client, s *source, next batch, limit time.Duration) batch {
	if len(next.entries) > 0 && !f.writeWithin(c, limit, next.frames(s, c)) {
		return batch{}
	}
	if before := c.at[s.Cell]; before != next.to {
		c.at = c.at.with(s.Cell, next.to)
		next.more = next.more || len(f.tailed()) > 1 // another one may have waited for this
	}
	return next
}

// sendBeat sends the position, if a heartbeat is due. It means that all results before have been sent, so if
// some wait, a comment is sent.
func (f *Feed) sendBeat(c *client, waits bool) {
	switch {
	case !c.beat.Swap(false):
	case waits:
		f.write(c, []byte(":\n\n"))
	default:
		f.write(c, PositionFrame(c.at))
	}
}

// catchUp sends results that the tail no longer keeps, read from Redis.
func (f *Feed) catchUp(c *client, s *source) (batch, error) {
	leave, ok := f.enter(c.app)
	if !ok {
		return batch{}, nil
	}
	defer leave()
	next, gone, err := f.readFor(c, s)
	switch {
	case gone:
		f.end(f.ctx, c)
		return batch{}, nil
	case err != nil:
		return batch{}, err
	}
	return f.deliver(c, s, next, min(f.cfg.Stall, catchUpStall)), nil
}

// end tells a client that results are missing, and ends its stream.
func (f *Feed) end(ctx context.Context, c *client) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if ends, err := f.Locate(ctx, Start{}); err == nil {
		f.write(c, goneFrame(&GoneError{ends}))
	}
	f.remove(c)
}

// enter waits until a batch for an app may be read from Redis. ok is false if the feed is closed.
func (f *Feed) enter(app string) (leave func(), ok bool) {
	f.mu.Lock()
	of := f.behind[app]
	if of == nil {
		of = make(chan struct{}, maxReadsApp)
		f.behind[app] = of
	}
	f.mu.Unlock()
	for i, slots := range []chan struct{}{of, f.reads} {
		select {
		case slots <- struct{}{}:
		case <-f.ctx.Done():
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
	ctx, cancel := context.WithTimeout(f.ctx, readTimeout)
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
	next.to = at
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range entries {
		if next.add(s, c, e); next.waits {
			break
		}
	}
	next.more = !next.waits
	return next, false, nil
}

// write writes frames to the client, or ends the stream. A client that does not accept them for long is cut off.
func (f *Feed) write(c *client, frames ...[]byte) bool { return f.writeWithin(c, f.cfg.Stall, frames) }

func (f *Feed) writeWithin(c *client, limit time.Duration, frames [][]byte) bool {
	_ = c.conn.SetWriteDeadline(time.Now().Add(limit))
	buffers := net.Buffers(frames)
	n, err := buffers.WriteTo(c.conn)
	f.cfg.Observe(int(n))
	if err != nil {
		f.remove(c)
		return false
	}
	return true
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
