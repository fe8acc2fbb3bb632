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
	Acquire(ctx context.Context, req locking.Request) (*locking.Lease, error)
}

// RequestFunc says which lock a message wants, and for whom.
type RequestFunc func(msg *message.Message) (locking.Request, error)

// Lock is the middleware that lets one message at a time per key through, over all processes. The
// handler's message carries a context that is cancelled when the lease is lost, and the lease itself
// (see [locking.FromContext]). When the lease cannot be had in time the error wraps
// [locking.ErrTimeout] and has the disposition [events.Contention]: retry later, nothing failed.
func Lock(locker Locker, request RequestFunc) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			req, err := request(msg)
			if err != nil {
				return nil, err
			}
			before := msg.Context()
			lease, err := locker.Acquire(before, req)
			if err != nil {
				return nil, refused(req, err)
			}
			msg.SetContext(locking.NewContext(lease.Context(), lease))
			defer func() {
				msg.SetContext(before)
				// A lease that cannot be given back lapses; the work's own outcome stands.
				_ = lease.Release(before)
			}()
			produced, err := next(msg)
			switch cause := context.Cause(lease.Context()); {
			case err == nil:
			case errors.Is(cause, locking.ErrLost):
				err = events.Errorf(events.Contention, events.ClassStale, "lease on %s lost: %w", req.Key, err)
			case errors.Is(cause, locking.ErrClosed):
				err = events.Errorf(events.Contention, events.ClassShutdown, "lease on %s ended: %w", req.Key, err)
			}
			return produced, err
		}
	}
}

// refused says what an Acquire that gave no lease means for the message.
func refused(req locking.Request, err error) error {
	switch {
	case errors.Is(err, locking.ErrTimeout):
		return &events.Error{Disposition: events.Contention, Class: events.ClassBusy, Err: err}
	case errors.Is(err, locking.ErrHeld):
		return events.Errorf(events.Permanent, events.ClassBusy, "skipped, as on_busy says: %w", err)
	case errors.Is(err, locking.ErrClosed):
		return events.Errorf(events.Contention, events.ClassShutdown, "lock %s: %w", req.Key, err)
	}
	// Redis could not say who holds the lock; that is nothing the message did.
	return &events.Error{Disposition: events.Contention, Class: events.ClassInternal, Err: fmt.Errorf("lock %s: %w", req.Key, err)}
}
