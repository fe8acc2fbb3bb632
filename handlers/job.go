package handlers

import (
	"context"
	"time"

	"lockstep/events"
	"lockstep/internal/hosts"
	"lockstep/internal/state"
)

// Job is a change being handled by a worker that holds the lease on its repository.
type Job struct {
	Change  events.Change
	Entry   string // ID of the change's stream entry
	Attempt int    // starts at 1; waiting for the lease does not count
	Fence   uint64 // fence of the lease on Change.Repo
	FenceTo uint64 // fence of the lease on Change.To, if any

	// Known is the repository's state, which [Backoff] reads.
	Known state.Repo

	// Now returns the time by Redis' clock; [time.Now] if nil.
	Now func() time.Time

	// Confirm returns nil once the lease is known to be held. It waits while Redis is unreachable, and fails when the
	// lease is lost or ctx is done. Call it before changing anything that readers can see.
	Confirm func(ctx context.Context) error

	// Latest is the ID of the last entry in the stream of the change when its handler began, or "" if the change did not
	// come from a stream. A later answer of the remote covers all changes up to that entry.
	Latest string

	// Waiting returns the waiting jobs of the repository, and Defer gives some back for a time, by their entries.
	Waiting func(ctx context.Context) ([]Job, error)
	Defer   func(ctx context.Context, entries []string, delay time.Duration) error

	Requests *hosts.Job // its requests to hosts, which are limited; nil for no limits

	// Progress reports a phase and how far it is. It is cheap and safe for concurrent use. [Changes] always sets it.
	Progress func(events.Progress)
}

func (j Job) now() time.Time {
	if j.Now == nil {
		return time.Now()
	}
	return j.Now()
}

// Result returns a result of type t for the job, see [events.Change.Result].
func (j Job) Result(t events.ResultType) events.Result {
	result := j.Change.Result(t, j.Entry)
	result.Attempts, result.Fence = j.Attempt, j.Fence
	return result
}

// Outcome is what a [Handler] returns: what to publish and write in the atomic step that settles the event.
type Outcome struct {
	Result  events.Result
	State   map[string]string
	Drop    []string          // fields to remove from the state
	Forget  bool              // clear the state, and that of views, before applying State and Views
	StateTo map[string]string // fields to set in the state of Change.To
	Changes []events.Change   // changes to publish in the same step
	More    []events.Result   // further results, published after Result
	Views   map[string]string // fields to set in the state of the repository's views; "" removes one
	ViewsTo map[string]string // same, for Change.To

	// Covers reports whether this outcome also answers another waiting job for the same repository, and
	// returns that job's outcome. It is called after the outcome itself is settled, by one goroutine, and
	// again for a job that it has not covered when others are settled. Optional.
	Covers func(ctx context.Context, other Job) (Outcome, bool)

	// Settled is called once a covered outcome is known to be settled, before Covers is called again. Optional.
	Settled func()
}

// Handler handles one change. The [events.Disposition] of its error decides what happens to the event.
type Handler func(ctx context.Context, job Job) (Outcome, error)
