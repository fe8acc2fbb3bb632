package router

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
)

// Slots bounds the work that a process does at once. Routes that share a Slots share the bound.
type Slots struct {
	taken  chan struct{}
	closed chan struct{}
	once   sync.Once
}

// NewSlots makes n slots, and at least one.
func NewSlots(n int) *Slots {
	return &Slots{taken: make(chan struct{}, max(n, 1)), closed: make(chan struct{})}
}

// Middleware lets a message through when a slot is free. It belongs inside the lock: waiting for
// a lease must not take a slot from a repository that could be worked on.
func (s *Slots) Middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		select {
		case <-s.closed: // first, lest a free slot be as good a choice
			return nil, errStopping
		default:
		}
		select {
		case s.taken <- struct{}{}:
			defer func() { <-s.taken }()
			return next(msg)
		case <-s.closed:
			return nil, errStopping
		case <-msg.Context().Done():
			return nil, fmt.Errorf("wait for a work slot: %w", context.Cause(msg.Context()))
		}
	}
}

// Close lets no message through any more: what waits goes back to the stream, what works goes on.
func (s *Slots) Close() { s.once.Do(func() { close(s.closed) }) }

var errStopping = events.Errorf(events.Contention, events.ClassShutdown, "this process is stopping")
