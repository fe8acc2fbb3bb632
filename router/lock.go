package router

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/locking"
)

// Locker is what the lock middleware needs of a [locking.Locker].
type Locker interface {
	AcquireAll(ctx context.Context, reqs ...locking.Request) (locking.Leases, error)
}

// RequestFunc says which locks a message wants, and for whom. Most want one. Of several the first is
// the message's own: by that lease it is settled.
type RequestFunc func(msg *message.Message) ([]locking.Request, error)

// Lock is the middleware that lets one message at a time per key through, over all processes. The
// handler's message carries a context that is cancelled when a lease is lost, and the leases themselves
// (see [locking.FromContext]). When they cannot be had in time the error wraps
// [locking.ErrTimeout] and has the disposition [events.Contention]: retry later, nothing failed.
func Lock(locker Locker, request RequestFunc) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			reqs, err := request(msg)
			if err != nil {
				return nil, err
			}
			before := msg.Context()
			waiting := child(before, "lease wait")
			leases, err := locker.AcquireAll(before, reqs...)
			if err != nil {
				err = refused(err)
				end(waiting, err)
				return nil, err
			}
			end(waiting, nil)
			held := leases.Context()
			msg.SetContext(locking.NewContext(held, leases...))
			defer func() {
				msg.SetContext(before)
				// A lease that cannot be given back lapses; the work's own outcome stands.
				_ = leases.Release(before)
			}()
			produced, err := next(msg)
			switch cause := context.Cause(held); {
			case err == nil:
			case errors.Is(cause, locking.ErrLost):
				err = events.Errorf(events.Contention, events.ClassStale, "lease on %s lost: %w", reqs[0].Key, err)
			case errors.Is(cause, locking.ErrClosed):
				err = events.Errorf(events.Contention, events.ClassShutdown, "lease on %s ended: %w", reqs[0].Key, err)
			}
			return produced, err
		}
	}
}

// refused says what an AcquireAll that gave no lease means for the message.
func refused(err error) error {
	switch {
	case errors.Is(err, locking.ErrTimeout):
		return &events.Error{Disposition: events.Contention, Class: events.ClassBusy, Err: err}
	case errors.Is(err, locking.ErrHeld):
		return events.Errorf(events.Permanent, events.ClassBusy, "skipped, as on_busy says: %w", err)
	case errors.Is(err, locking.ErrClosed):
		return events.Errorf(events.Contention, events.ClassShutdown, "lock: %w", err)
	}
	// Redis could not say who holds the lock; that is nothing the message did.
	return &events.Error{Disposition: events.Contention, Class: events.ClassInternal, Err: fmt.Errorf("lock: %w", err)}
}
