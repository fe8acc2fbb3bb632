package router

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/locking"
)

// Locker acquires leases. [locking.Locker] implements it.
type Locker interface {
	AcquireAll(ctx context.Context, reqs ...locking.Request) (locking.Leases, error)
}

// RequestFunc returns the locks that a message needs, usually one. The message is settled under the first one's lease.
type RequestFunc func(msg *message.Message) ([]locking.Request, error)

// Lock is the middleware that handles one message at a time per key, across all processes. The message's context is
// cancelled when a lease is lost; [Leases] returns the leases. If they cannot be acquired in time, the error wraps
// [locking.ErrTimeout] and has the disposition [events.Contention], so the retry does not count as a failed attempt. An
// invalid request, such as a key with NUL, is a permanent failure.
func Lock(locker Locker, request RequestFunc) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			reqs, err := request(msg)
			if err != nil {
				return nil, err
			}
			before := msg.Context()
			span := StartSpan(before, "lease wait")
			leases, err := locker.AcquireAll(before, reqs...)
			if err != nil {
				err = notAcquired(err)
				EndSpan(span, err)
				return nil, err
			}
			EndSpan(span, nil)
			held := leases.Context()
			msg.SetContext(context.WithValue(held, leasesKey{}, leases))
			defer func() {
				msg.SetContext(before)
				// A lease that cannot be released expires; the handler's outcome still counts.
				_ = leases.Release(before)
			}()
			produced, err := next(msg)
			switch cause := context.Cause(held); {
			case err == nil:
			case errors.Is(cause, locking.ErrLost):
				err = events.Errorf(events.Contention, events.ClassBusy, "lease on %s lost: %w", reqs[0].Key, err)
			case errors.Is(cause, locking.ErrClosed):
				err = stopping(fmt.Errorf("lease on %s ended: %w", reqs[0].Key, err))
			}
			return produced, err
		}
	}
}

// notAcquired returns the error of a message whose locks could not be acquired.
func notAcquired(err error) error {
	switch {
	case errors.Is(err, locking.ErrTimeout):
		return &events.Error{Disposition: events.Contention, Scope: events.ScopeNone, Class: events.ClassBusy, Err: err}
	case errors.Is(err, locking.ErrHeld):
		err = fmt.Errorf("skipped because of on_busy=skip: %w", err)
		return &events.Error{Disposition: events.Permanent, Scope: events.ScopeNone, Class: events.ClassBusy, Err: err}
	case errors.Is(err, locking.ErrClosed):
		return stopping(fmt.Errorf("lock: %w", err))
	case errors.Is(err, locking.ErrBadRequest):
		return events.Errorf(events.Permanent, events.ClassInternal, "lock: %w", err)
	}
	// Redis failed, not the message.
	err = fmt.Errorf("lock: %w", err)
	return &events.Error{Disposition: events.Contention, Scope: events.ScopeUs, Class: events.ClassInternal, Err: err}
}

// stopping returns the error of a message that returns to the stream at once because this process is stopping.
func stopping(err error) error {
	return &events.Error{
		Disposition: events.Contention, Scope: events.ScopeNone, RetryAfter: events.AtOnce, Class: events.ClassBusy, Err: err,
	}
}

type leasesKey struct{}

// Leases returns the leases that [Lock] holds for msg, in the order of their requests. They are a value of the
// message's context, because Watermill passes nothing but the message to handlers and middlewares.
func Leases(msg *message.Message) locking.Leases {
	leases, _ := msg.Context().Value(leasesKey{}).(locking.Leases)
	return leases
}
