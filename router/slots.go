package router

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/router/observe"
)

// Slots limits how many messages a process handles concurrently. Routes that share a Slots share the limit.
type Slots struct {
	busy    chan struct{}
	waiting atomic.Int64 // messages that wait only for a slot
	closed  chan struct{}
	once    sync.Once
}

// NewSlots returns n slots, at least one.
func NewSlots(n int) *Slots {
	return &Slots{busy: make(chan struct{}, max(n, 1)), closed: make(chan struct{})}
}

// waitingPerSlot limits how many messages wait for a slot: enough to keep every slot busy while more are read, but few
// enough to leave the rest to other processes.
const waitingPerSlot = 4

// Room returns how many more messages could soon get a slot, for [stream.SubscriberConfig].
func (s *Slots) Room() int { return waitingPerSlot*cap(s.busy) - int(s.waiting.Load()) }

// Middleware waits for a free slot. It belongs inside Lock: a message that waits for a lease must not occupy a slot.
func (s *Slots) Middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		waited := inFlightOf(msg).observed.Step(observe.SlotWait)
		err := s.enter(msg.Context())
		if waited(err); err != nil {
			return nil, err
		}
		defer func() { <-s.busy }()
		return next(msg)
	}
}

func (s *Slots) enter(ctx context.Context) error {
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	select {
	case <-s.closed: // checked first: the select below would choose at random
		return errStopping
	default:
	}
	select {
	case s.busy <- struct{}{}:
		return nil
	case <-s.closed:
		return errStopping
	case <-ctx.Done():
		return fmt.Errorf("wait for a work slot: %w", context.Cause(ctx))
	}
}

// Close admits no more messages: waiting ones return to the stream, those with a slot continue.
func (s *Slots) Close() { s.once.Do(func() { close(s.closed) }) }

var errStopping = events.Errorf(events.Contention, events.ClassShutdown, "this process is stopping")
