package events

import (
	"context"
	"strings"
	"time"
)

// Job is a change being handled by a worker that holds the lease on its repository.
type Job struct {
	Change  Change
	Entry   string // ID of the change's stream entry
	Attempt int    // starts at 1; waiting for the lease does not count
	Fence   uint64 // fence of the lease on Change.Repo
	FenceTo uint64 // fence of the lease on Change.To, if any

	// Follows is the last result of the repository in the cell that it came from, which the handler reads from its state; nil if it came
	// from none.
	Follows *Follows

	// Confirm returns nil once the lease is known to be held. It waits while Redis is unreachable, and fails when the
	// lease is lost or ctx is done. Call it before changing anything that readers can see.
	Confirm func(ctx context.Context) error

	// Latest returns the ID of the last entry in the stream of the change, or "" if the change did not come
	// from a stream. A later answer of the remote covers all changes up to that entry.
	Latest func(ctx context.Context) (string, error)

	// Newest returns the ID of the newest waiting entry that announces a commit for the same ref and
	// app, or "" if there is none.
	Newest func(ctx context.Context) (string, error)

	// Progress reports a phase and how far it is. It is cheap and safe for concurrent use. The router always sets it.
	Progress func(Progress)
}

// Announced returns the commit that the ref now names according to the change, or "". A hash of zeros, by which
// forges report a deleted ref, counts as none, and so does a commit by its hash, see [Change.Pinned].
func (c Change) Announced() string {
	if strings.Trim(c.After, "0") == "" || c.Pinned() != "" {
		return ""
	}
	return c.After
}

// Pinned returns the commit that a sync publishes whatever the ref names now, or "" if it publishes what the ref names.
func (c Change) Pinned() string {
	switch {
	case c.Type != ChangePushed:
		return ""
	case c.Pin:
		return c.After
	}
	return c.Ref.Commit()
}

// Result returns a result of type t for the job; the caller fills in the fields specific to the type. The ID
// is the same for every attempt at the same stream entry, so consumers can detect duplicates.
func (j Job) Result(t ResultType) Result {
	return Result{
		ID: j.Change.ID + "/" + j.Entry, Type: t, Time: time.Now().UTC(),
		Repo: j.Change.Repo, App: j.Change.App, Ref: j.Change.Ref,
		Deliveries: []string{j.Change.ID}, Attempts: j.Attempt, Fence: j.Fence, Follows: j.Follows,
	}
}

// Outcome is what a [Handler] returns: what to publish and write in the atomic step that settles the event.
type Outcome struct {
	Result  Result
	State   map[string]string
	Drop    []string          // fields to remove from the state
	Forget  bool              // clear the state, and that of views, before applying State and Views
	StateTo map[string]string // fields to set in the state of Change.To
	Changes []Change          // changes to publish in the same step
	More    []Result          // further results, published after Result
	Views   map[string]string // fields to set in the state of the repository's views; "" removes one
	ViewsTo map[string]string // same, for Change.To

	// Covers reports whether this outcome also answers another waiting job for the same repository, and returns
	// that job's outcome. It is called after the outcome itself is settled, by one goroutine, and again for a job that it has not
	// covered when others are settled. Optional.
	Covers func(ctx context.Context, other Job) (Outcome, bool)

	// Settled is called once a covered outcome is known to be settled, before Covers is called again. Optional.
	Settled func()
}

// Handler handles one change. The [Disposition] of its error decides what happens to the event.
type Handler func(ctx context.Context, job Job) (Outcome, error)
