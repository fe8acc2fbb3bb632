package router

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Slots limits how many messages a process handles concurrently. Routes that share a Slots share the limit.
//
// A free slot goes to the key that was served least recently, so keys with many messages do not delay the others. The key
// is that of a message's first lock; messages without locks share a key. A job may give its slot back while it waits for
// something else (see [Yield]), and keeps its place in the order when it takes one again.
type Slots struct {
	size int

	mu      sync.Mutex
	busy    int
	closed  bool
	waiting waitQueue
	spares  map[*Spare]bool // in use, and not wanted yet
}

// NewSlots returns n slots, at least one.
func NewSlots(n int) *Slots {
	n = max(n, 1)
	return &Slots{size: n, spares: map[*Spare]bool{}, waiting: newWaitQueue(max(minRecent, recentPerSlot*n))}
}

// Slots remembers which keys were served in the last turns: more turns than messages wait for a slot.
const (
	minRecent     = 256
	recentPerSlot = 4 * waitingPerSlot
)

// waitingPerSlot limits how many messages wait for a slot: enough to keep every slot busy while more are read, but few
// enough to leave the rest to other processes.
const waitingPerSlot = 4

// Room returns how many more messages could soon get a slot, for [stream.SubscriberConfig].
func (s *Slots) Room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return waitingPerSlot*s.size - s.waiting.len
}

// Middleware waits for a free slot. It belongs inside Lock: a message that waits for a lease must not occupy a slot.
func (s *Slots) Middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		flight := inFlightOf(msg)
		slot := &slot{slots: s, key: flight.key}
		if err := slot.acquire(msg.Context()); err != nil {
			return nil, err
		}
		flight.slot = slot
		defer func() {
			flight.slot = nil
			slot.release()
		}()
		return next(msg)
	}
}

// Close admits no more messages: those that wait for their first slot return to the stream, the others continue.
func (s *Slots) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.wantSpares()
	for _, w := range s.waiting.firstTime() {
		s.waiting.remove(w)
		w.end(errStopping)
	}
}

var errStopping = stopping(errors.New("this process is stopping"))

// grant gives the free slots to the waiters that are first in the order. The caller holds mu.
func (s *Slots) grant() {
	for s.busy < s.size && s.waiting.len > 0 {
		w := s.waiting.next()
		s.busy++
		w.slot.held, w.slot.started = true, true
		w.end(nil)
	}
}

// slot is the slot of one message.
type slot struct {
	slots *Slots
	key   string

	// Guarded by slots.mu.
	held    bool
	started bool   // it was held before
	rank    uint64 // its place in the order, once it is started
}

// acquire waits for a slot.
func (t *slot) acquire(ctx context.Context) (err error) {
	span := StartSpan(ctx, "slot wait")
	defer func() { EndSpan(span, err) }()
	w, err := t.wait()
	if err != nil {
		return err
	}
	select {
	case err := <-w.ended:
		return err
	case <-ctx.Done():
	}
	s := t.slots
	s.mu.Lock()
	if w.queue != nil { // still waiting
		s.waiting.remove(w)
		w.end(fmt.Errorf("wait for a work slot: %w", context.Cause(ctx)))
	}
	s.mu.Unlock()
	return <-w.ended
}

func (t *slot) wait() (*waiter, error) {
	s := t.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && !t.started {
		return nil, errStopping
	}
	w := s.waiting.add(t)
	s.grant()
	if s.waiting.len > 0 {
		s.wantSpares()
	}
	return w, nil
}

// release gives the slot to the next waiter. It does nothing unless the slot is held.
func (t *slot) release() {
	s := t.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.held {
		t.held = false
		s.busy--
		s.grant()
	}
}

// yield implements [Yield].
func (t *slot) yield() (resume func(context.Context) error) {
	if t == nil {
		return func(context.Context) error { return nil }
	}
	t.release()
	return func(ctx context.Context) error {
		if t.isHeld() {
			return nil
		}
		return t.acquire(ctx)
	}
}

func (t *slot) isHeld() bool {
	t.slots.mu.Lock()
	defer t.slots.mu.Unlock()
	return t.held
}
