package locking

import (
	"errors"
	"time"
)

// Observer receives events of requests and leases, for metrics. It must be safe for concurrent use and must not block.
type Observer interface {
	WaitBegan()                                      // a request begins
	WaitEnded(outcome Outcome, waited time.Duration) // a request ends; called once per WaitBegan
	Released(held time.Duration)                     // a lease that was not lost is released
	Lost(held time.Duration, forced bool)            // a lease is lost, by force or to another request
	InDoubt()                                        // a lease could not be renewed in time
}

// Outcome is how a request ended.
type Outcome string

// The outcomes of a request.
const (
	Acquired    Outcome = "acquired"
	TimedOut    Outcome = "timeout"
	Skipped     Outcome = "skipped"
	Cancelled   Outcome = "cancelled"
	Closed      Outcome = "closed"
	Unavailable Outcome = "unavailable"
)

func outcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return Acquired
	case errors.Is(err, ErrTimeout):
		return TimedOut
	case errors.Is(err, ErrHeld):
		return Skipped
	case errors.Is(err, ErrClosed):
		return Closed
	case errors.Is(err, ErrUnavailable):
		return Unavailable
	}
	return Cancelled
}

type noObserver struct{}

func (noObserver) WaitBegan()                       {}
func (noObserver) WaitEnded(Outcome, time.Duration) {}
func (noObserver) Released(time.Duration)           {}
func (noObserver) Lost(time.Duration, bool)         {}
func (noObserver) InDoubt()                         {}
