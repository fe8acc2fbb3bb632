package locking

import (
	"errors"
	"time"
)

// Observer is told what becomes of requests and leases, for metrics. It is called from many
// goroutines and must not block.
type Observer interface {
	WaitBegan()                                      // a request was made
	WaitEnded(outcome Outcome, waited time.Duration) // once for each WaitBegan
	Released(held time.Duration)                     // a lease was returned that was not lost
	Lost(held time.Duration, forced bool)            // a lease turned out to be another's, or was taken away by force
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
	default:
		return Cancelled
	}
}

type noObserver struct{}

func (noObserver) WaitBegan()                       {}
func (noObserver) WaitEnded(Outcome, time.Duration) {}
func (noObserver) Released(time.Duration)           {}
func (noObserver) Lost(time.Duration, bool)         {}
func (noObserver) InDoubt()                         {}
