package events

import (
	"context"
	"strings"
	"time"
)

// Job is one change in the hands of a worker that holds the lease on its repository.
type Job struct {
	Change  Change
	Entry   string // id of the stream entry that brought the change
	Attempt int    // 1 the first time; waiting for the lease does not count
	Fence   uint64 // of the lease held on Change.Repo
	FenceTo uint64 // of the lease held on Change.To, if there is one

	// Confirm returns once the lease is proven to be still held. It waits while that is in doubt,
	// as when Redis cannot be reached, and fails when the lease is lost or ctx is done. Nothing
	// that readers see may change without it.
	Confirm func(ctx context.Context) error

	// Latest returns the id of the last entry of the stream that brought the change, or "" when it was
	// not brought by one. Whatever the remote says afterwards answers all changes up to that entry.
	Latest func(ctx context.Context) (string, error)

	// Newest returns the id of the newest waiting entry known that announces a commit for the same
	// ref to the same app, or "" when there is none.
	Newest func(ctx context.Context) (string, error)

	// Progress is told of each phase of the work as it begins, and now and then how far it is. It is cheap, and
	// safe for concurrent use. Never nil in the hands of a handler that a router calls.
	Progress func(Progress)
}

// Announced is the commit that c says its ref names now, or "". All zeros are what forges say of a ref
// that was deleted: no commit.
func (c Change) Announced() string {
	if strings.Trim(c.After, "0") == "" {
		return ""
	}
	return c.After
}

// Result starts a result of type t that answers the job; what the type wants is for the caller to
// fill in. Its id is the same for every attempt at the same stream entry, so that a consumer that
// is given a result twice can tell.
func (j Job) Result(t ResultType) Result {
	return Result{
		ID: j.Change.ID + "/" + j.Entry, Type: t, Time: time.Now().UTC(),
		Repo: j.Change.Repo, App: j.Change.App, Ref: j.Change.Ref,
		Deliveries: []string{j.Change.ID}, Attempts: j.Attempt, Fence: j.Fence,
	}
}

// Outcome is what a [Handler] made of a [Job]: the result to publish and the fields of the
// repository's state to set in the same atomic step that settles the event.
type Outcome struct {
	Result  Result
	State   map[string]string
	Drop    []string          // fields of the state to remove
	Forget  bool              // clear the repository's state before State is set
	StateTo map[string]string // fields of the state of Change.To to set
	Changes []Change          // to ask for in the same step

	// Covers says of another job for the same repository, which waits for its turn, whether this
	// outcome answers it too, and what comes of it then. It is asked once the outcome itself is
	// settled, by one goroutine. Nil: it answers none.
	Covers func(ctx context.Context, other Job) (Outcome, bool)
}

// Handler works on one change. Its error's [Disposition] decides what becomes of the event.
type Handler func(ctx context.Context, job Job) (Outcome, error)
