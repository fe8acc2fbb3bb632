package feed

import (
	"context"
	"encoding/json"
	"net"
	"sync/atomic"
	"time"
)

// client is a connection that results are sent to. Only the goroutine that has set its state to sending uses its position and writes
// to its connection.
type client struct {
	conn    net.Conn
	app     string
	token   string
	release func()
	first   []byte // not sent yet
	at      Position

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

// batch has the next results for a client.
type batch struct {
	frames [][]byte
	to     Position // the client's position once it has them
	more   bool     // there may be more
}

// sendNext sends the next batch. It reports whether there may be more.
func (f *Feed) sendNext(c *client) (more bool) {
	if c.first != nil && !f.write(c, c.first) {
		return false
	}
	c.first = nil
	next, ok := f.next(c)
	if !ok {
		return f.catchUp(c)
	}
	if !f.deliver(c, next, f.cfg.Stall) {
		return false
	}
	if !next.more {
		f.sendBeat(c)
	}
	return next.more
}

// catchUpStall is how long a client may take to accept a batch, of 256 KiB at most, that was read for it from Redis: others wait.
const catchUpStall = 10 * time.Second

// deliver sends a batch within a time limit, and then moves the client's position to its end.
func (f *Feed) deliver(c *client, next batch, limit time.Duration) bool {
	if len(next.frames) > 0 && !f.writeWithin(c, limit, next.frames) {
		return false
	}
	c.at = next.to
	return true
}

// sendBeat sends a heartbeat if one is due.
func (f *Feed) sendBeat(c *client) {
	if c.beat.Swap(false) {
		f.write(c, PositionFrame(c.at))
	}
}

// catchUp sends the next batch to a client whose position is older than the results that the tail keeps. It reports whether there may be more.
func (f *Feed) catchUp(c *client) (more bool) {
	leave, ok := f.enter(c.app)
	if !ok {
		return false
	}
	defer leave()
	next, gone, err := f.readFor(c)
	switch {
	case gone != nil:
		f.write(c, goneFrame(gone))
		f.remove(c)
		return false
	case err != nil:
		c.retry.Store(true)
		f.sendBeat(c)
		return false
	case !f.deliver(c, next, min(f.cfg.Stall, catchUpStall)):
		return false
	case !next.more:
		f.sendBeat(c)
	}
	return next.more
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

// readFor reads the next batch for a client from Redis.
func (f *Feed) readFor(c *client) (batch, *GoneError, error) {
	ctx, cancel := context.WithTimeout(f.ctx, readTimeout)
	defer cancel()
	read, err := f.readAt(ctx, c.at.Entry(), c.at)
	if err != nil {
		return batch{}, nil, err
	}
	if read.gone {
		return batch{}, &GoneError{read.end}, nil
	}
	entries, err := f.prepare(ctx, c.at, read)
	if err != nil {
		return batch{}, nil, err
	}
	next := batch{to: c.at, more: len(entries) > 0}
	if read.end.entry == c.at.entry {
		next.to = read.end
	}
	for _, e := range entries {
		if e.isFor(c) {
			next.frames = append(next.frames, e.frame)
		}
		next.to = e.at
	}
	return next, nil, nil
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
	}
	return err == nil
}

// PositionFrame returns the event that tells a client its position. It dispatches nothing.
func PositionFrame(at Position) []byte { return []byte("id: " + at.String() + "\n\n") }

// goneFrame returns the event that tells a client that results after its position are missing. It has no ID: the next request with the
// last one is answered with 410.
func goneFrame(gone *GoneError) []byte {
	document, err := json.Marshal(map[string]string{"error": gone.Error(), "cursor": gone.End.String()})
	if err != nil {
		return nil // impossible: it has two strings
	}
	return append(append([]byte("event: gone\ndata: "), document...), "\n\n"...)
}
