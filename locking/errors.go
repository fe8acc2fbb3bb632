package locking

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrTimeout: others held the key for the whole wait. It is safe to try again later. The error is a *TimeoutError.
	ErrTimeout = errors.New("lock timeout")

	// ErrHeld: the key is held, and the request's policy is Skip or Yield.
	ErrHeld = errors.New("is held")

	// ErrLost: another request has owned the lease since, or it was released by force.
	ErrLost = errors.New("lease lost")

	// ErrClosed: the Locker is closed.
	ErrClosed = errors.New("locker is closed")

	// ErrBadRequest: the Request is invalid, and fails again if repeated.
	ErrBadRequest = errors.New("invalid lock request")

	// ErrUnavailable: Redis did not answer during the whole wait. The error wraps the last failure.
	ErrUnavailable = errors.New("redis unavailable")

	// errReleased ends a lease that was not lost. A caller that keeps using the lease gets ErrLost.
	errReleased = fmt.Errorf("%w: it was released", ErrLost)
)

// TimeoutError describes a wait that timed out. It is an ErrTimeout.
type TimeoutError struct {
	Key    string
	Job    string // job that waited
	Waited time.Duration
	Holder Holder // holder at the end of the wait
}

// Error returns a message such as: job 42 waited 1m0s for acme/widgets, held by job 37 (worker w1, sync).
func (e *TimeoutError) Error() string {
	who := "a job without id"
	if e.Job != "" {
		who = "job " + e.Job
	}
	return fmt.Sprintf("%s waited %v for %s, held by %s", who, e.Waited.Round(time.Millisecond), e.Key, e.Holder)
}

// Is reports whether target is ErrTimeout.
func (e *TimeoutError) Is(target error) bool { return target == ErrTimeout }

// heldBy returns the error of a request that was skipped, such as: acme/widgets is held by job 37 (worker w1, sync).
func heldBy(key string, holder Holder) error { return fmt.Errorf("%s %w by %s", key, ErrHeld, holder) }
