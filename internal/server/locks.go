package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"lockstep/events"
	"lockstep/locking"
)

// Locks lists locks and releases them by force. [locking.Inspector] implements it.
type Locks interface {
	List(ctx context.Context) ([]locking.Status, error)
	Status(ctx context.Context, key string) (locking.Status, error)
	ForceRelease(ctx context.Context, key string, fence uint64) (locking.Holder, error)
}

// LocksOfCells lists the locks of all cells by cell, and the names of those that do not answer.
type LocksOfCells func(context.Context) (held map[string][]locking.Status, missing []string, err error)

// Lock is a lock as shown by the API and the command line.
type Lock struct {
	Repo        string     `json:"repo"`
	Cell        string     `json:"cell,omitempty"` // in lists, if there are several; not set by NewLock
	Held        bool       `json:"held"`
	Fence       uint64     `json:"fence,omitempty"` // of the last grant, even if the lock is free
	Holder      *Party     `json:"holder,omitempty"`
	Since       *time.Time `json:"since,omitempty"`
	RemainingMS int64      `json:"remaining_ms,omitempty"` // until the lease expires, unless renewed
	Waiters     []Party    `json:"waiters"`                // in queue order, one per process
}

// Party is the holder of a lock or a waiter.
type Party struct {
	Worker    string `json:"worker"`
	Job       string `json:"job"`
	Operation string `json:"operation"`
}

// NewLock converts a status.
func NewLock(s locking.Status) Lock {
	lock := Lock{Repo: s.Key, Held: s.Held, Fence: s.Fence, Waiters: []Party{}}
	if s.Held {
		since := s.Holder.Since.UTC()
		lock.Holder, lock.Since = &Party{s.Holder.Worker, s.Holder.Job, s.Holder.Operation}, &since
		lock.RemainingMS = s.Holder.Remaining.Milliseconds()
	}
	for _, w := range s.Waiters {
		lock.Waiters = append(lock.Waiters, Party(w))
	}
	return lock
}

func listLocks(locks Locks, all LocksOfCells) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		list := struct {
			Locks   []Lock   `json:"locks"`
			Missing []string `json:"missing_cells,omitempty"`
		}{Locks: []Lock{}}
		var held map[string][]locking.Status
		var err error
		if all != nil {
			held, list.Missing, err = all(r.Context())
		} else {
			var here []locking.Status
			here, err = locks.List(r.Context())
			held = map[string][]locking.Status{"": here}
		}
		if err != nil {
			return nil, err
		}
		for _, cell := range slices.Sorted(maps.Keys(held)) {
			for _, status := range held[cell] {
				lock := NewLock(status)
				lock.Cell = cell
				list.Locks = append(list.Locks, lock)
			}
		}
		return list, nil
	})
}

func showLock(locks Locks) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		repo, err := events.ParseRepoPath(r.PathValue("repo"))
		if err != nil {
			return nil, badRequest(err)
		}
		status, err := locks.Status(r.Context(), repo.Key())
		return NewLock(status), err
	})
}

// releaseLock releases the lease with the fence in the request, and therefore never a newer one.
func releaseLock(locks Locks) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		repo, err := events.ParseRepoPath(r.PathValue("repo"))
		if err != nil {
			return nil, badRequest(err)
		}
		fence, err := strconv.ParseUint(r.URL.Query().Get("fence"), 10, 64)
		if err != nil {
			return nil, badRequest(errors.New("want the fence of the lease to release, as in ?fence=1795223511284000"))
		}
		former, err := locks.ForceRelease(r.Context(), repo.Key(), fence)
		switch {
		case errors.Is(err, locking.ErrNotHeld):
			return nil, problem{fmt.Errorf("%s is not held with fence %d; request the lock again to see its "+
				"current fence", repo, fence), http.StatusConflict}
		case err != nil:
			return nil, problem{errors.New("Redis does not answer; check whether the lock is still held, " +
				"then try again"), http.StatusServiceUnavailable}
		}
		return Released{repo.String(), fence, Party{former.Worker, former.Job, former.Operation}}, nil
	})
}

// Released names the former holder of a lease released by force.
type Released struct {
	Repo  string `json:"repo"`
	Fence uint64 `json:"fence"`
	From  Party  `json:"from"`
}
