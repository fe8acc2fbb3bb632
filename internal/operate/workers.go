package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
)

// Worker is a process that takes changes, or one that has not left and is not heard any more.
type Worker struct {
	Name    string    `json:"name"`
	Cell    string    `json:"cell,omitempty"` // if there are several
	State   string    `json:"state"`          // see the constants
	Live    bool      `json:"live"`           // heard within 15 s
	Heard   time.Time `json:"heard"`          // last, to the second
	Pending int64     `json:"pending"`        // changes
}

// The states of a [Worker].
const (
	WorkerLive    = "live"
	WorkerUnheard = "not heard" // for 15 s: it may drain, or have stopped
	WorkerMissing = "missing"   // for longer than that takes
)

// Workers are the workers of a deployment.
type Workers struct {
	Cells *cells.Set
	Grace time.Duration // of workers that stop; one with a longer grace may be missing while it drains
}

var (
	// ErrNoWorker means that there is no worker with a name.
	ErrNoWorker = errors.New("no worker has this name")
	// ErrWorkerStays means that a worker cannot be removed.
	ErrWorkerStays = errors.New("the worker is not removed")
)

// List returns the workers of all cells that answer, live ones first, and the other cells.
func (w *Workers) List(ctx context.Context) (list []Worker, missing []cells.Missing, err error) {
	list = []Worker{}
	missing, err = Each(ctx, w.Cells, func(cell cells.Member) error {
		all, err := stream.Consumers(ctx, w.Cells.Redis(), cell.Namespace.Changes(), events.WorkersGroup)
		now := time.Now().UTC()
		for _, c := range all {
			list = append(list, Worker{
				Name: c.Name, Cell: Shown(w.Cells, cell), Live: c.Idle < stream.LiveFor, State: w.state(c.Idle),
				Heard: now.Add(-c.Idle).Truncate(time.Second), Pending: c.Pending,
			})
		}
		return err
	})
	slices.SortFunc(list, func(a, b Worker) int { // stable rows: not by the last heartbeat
		if a.Live != b.Live {
			return map[bool]int{true: -1, false: 1}[a.Live]
		}
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Cell, b.Cell))
	})
	return list, missing, err
}

// state returns the state of a worker without a heartbeat for some time. It is missing once that is longer than it takes to
// drain, or to start another one on the same host.
func (w *Workers) state(unheard time.Duration) string {
	switch {
	case unheard < stream.LiveFor:
		return WorkerLive
	case unheard < max(100*time.Second, w.Grace+30*time.Second):
		return WorkerUnheard
	}
	return WorkerMissing
}

// Unheard returns how many of the workers are not heard, but not missing yet.
func Unheard(all []Worker) (n int) {
	for _, w := range all {
		if w.State == WorkerUnheard {
			n++
		}
	}
	return n
}

// Remove removes a worker that is not heard, of a cell or, if that is "", of any. It returns [ErrNoWorker] or [ErrWorkerStays].
func (w *Workers) Remove(ctx context.Context, cell, name string) (Worker, error) {
	all, missing, err := w.List(ctx)
	if err != nil {
		return Worker{}, err
	}
	i := slices.IndexFunc(all, func(w Worker) bool { return w.Name == name && (cell == "" || w.Cell == cell) })
	switch {
	case i < 0 && len(missing) > 0:
		return Worker{}, Unanswered(missing)
	case i < 0:
		return Worker{}, fmt.Errorf("%w: %.100q", ErrNoWorker, name)
	case all[i].Live:
		return Worker{}, fmt.Errorf("%w: %s is live; stop it", ErrWorkerStays, name)
	}
	member := w.Cells.Members()[0]
	if !w.Cells.IsSingle() {
		member, _ = w.Cells.Cell(all[i].Cell)
	}
	gone, err := stream.RemoveConsumer(ctx, w.Cells.Redis(), member.Namespace.Changes(), events.WorkersGroup, name)
	if err == nil && !gone {
		err = fmt.Errorf("%w: %s has changes that no other worker has taken over yet; start one", ErrWorkerStays, name)
	}
	return all[i], member.Explain(err)
}
