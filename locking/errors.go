package locking

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrTimeout: the key was held by others for as long as the request was willing to wait. Trying
	// again later is sound. The error is a *TimeoutError.
	ErrTimeout = errors.New("lock timeout")

	// ErrHeld: the key is held, and the request said Skip. The error is a *HeldError.
	ErrHeld = errors.New("lock is held")

	// ErrLost: another has had the lease since, or it was taken away.
	ErrLost = errors.New("lease lost")

	// ErrClosed: the Locker is closed.
	ErrClosed = errors.New("locker is closed")

	// ErrUnavailable: Redis did not answer for as long as the request was willing to wait. It wraps
	// the last failure.
	ErrUnavailable = errors.New("redis unavailable")

	// errReleased is how a lease ends that was not lost; whoever goes on with it has none.
	errReleased = fmt.Errorf("%w: it was released", ErrLost)
)

// TimeoutError says who kept a request waiting. It is an ErrTimeout.
type TimeoutError struct {
	Key    string
	Job    string // that waited
	Waited time.Duration
	Holder Holder // at the end of the wait
}

// Error reads: job 42 waited 1m0s for acme/widgets, held by job 37 (worker w1, sync).
func (e *TimeoutError) Error() string {
	who := "a job without id"
	if e.Job != "" {
		who = "job " + e.Job
	}
	return fmt.Sprintf("%s waited %v for %s, held by %s", who, e.Waited.Round(time.Millisecond), e.Key, e.Holder)
}

// Is makes it an ErrTimeout.
func (e *TimeoutError) Is(target error) bool { return target == ErrTimeout }

// HeldError says why a request was skipped. It is an ErrHeld.
type HeldError struct {
	Key    string
	Holder Holder
}

// Error reads: acme/widgets is held by job 37 (worker w1, sync).
func (e *HeldError) Error() string { return fmt.Sprintf("%s is held by %s", e.Key, e.Holder) }

// Is makes it an ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }
