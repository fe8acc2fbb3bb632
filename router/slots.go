package router

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
)

// Slots bounds the work that a process does at once. Routes that share a Slots share the bound.
type Slots struct {
	taken   chan struct{}
	waiting atomic.Int64 // messages that could be worked on at once
	closed  chan struct{}
	once    sync.Once
}

// NewSlots makes n slots, and at least one.
func NewSlots(n int) *Slots {
	return &Slots{taken: make(chan struct{}, max(n, 1)), closed: make(chan struct{})}
}

// ahead times the slots is how many messages may wait for one: enough for none to be idle while the
// next are read, and few enough to leave the rest to other processes.
const ahead = 4

// Room says how many more messages could soon have a slot, for [stream.SubscriberConfig]. Those that wait
// for a lease are not counted.
func (s *Slots) Room() int { return ahead*cap(s.taken) - int(s.waiting.Load()) }

// Middleware lets a message through when a slot is free. It belongs inside the lock: waiting for
// a lease must not take a slot from a repository that could be worked on.
func (s *Slots) Middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		waiting := child(msg.Context(), "slot wait")
		err := s.enter(msg.Context())
		if end(waiting, err); err != nil {
			return nil, err
		}
		defer func() { <-s.taken }()
		return next(msg)
	}
}

// enter takes a slot.
func (s *Slots) enter(ctx context.Context) error {
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	select {
	case <-s.closed: // first, lest a free slot be as good a choice
		return errStopping
	default:
	}
	select {
	case s.taken <- struct{}{}:
		return nil
	case <-s.closed:
		return errStopping
	case <-ctx.Done():
		return fmt.Errorf("wait for a work slot: %w", context.Cause(ctx))
	}
}

// Close lets no message through any more: what waits goes back to the stream, what works goes on.
func (s *Slots) Close() { s.once.Do(func() { close(s.closed) }) }

var errStopping = events.Errorf(events.Contention, events.ClassShutdown, "this process is stopping")
