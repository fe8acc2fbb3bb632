package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"lockstep/internal/volume"
	"lockstep/locking"
)

// preparer links the next trees of pushed refs, one at a time, once their pushes have settled, no other has followed, and no
// job waits for a slot. It takes a lease only if that is free, and stops as soon as anybody wants it.
type preparer struct {
	volume *volume.Volume
	locker *locking.Locker
	slots  *volume.Slots
	log    *slog.Logger
	pushed chan preparation // in the order of due
}

type preparation struct {
	volume.PrepareRequest
	due   time.Time
	tries int
}

const (
	prepareAfter    = 100 * time.Millisecond // a push has settled by then, and more of a burst may have come
	prepareTries    = 10                     // while the repository is in use
	maxPreparations = 1000                   // that wait; more are dropped
)

func newPreparer(slots *volume.Slots, log *slog.Logger) *preparer {
	return &preparer{slots: slots, log: log, pushed: make(chan preparation, maxPreparations)}
}

func (p *preparer) add(next preparation) {
	next.due = time.Now().Add(prepareAfter)
	select {
	case p.pushed <- next:
	default:
	}
}

// Run prepares trees until ctx is done.
func (p *preparer) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-p.pushed:
			if !Sleep(ctx, time.Until(next.due)) {
				return
			}
			if !p.slots.AreWanted() && p.volume.IsPreparable(next.PrepareRequest) {
				p.try(ctx, next)
			}
		}
	}
}

var errWanted = errors.New("the lease is wanted")

// try prepares a tree, or does so later if the repository is in use. A preparation that was interrupted is left to the next
// push.
func (p *preparer) try(ctx context.Context, next preparation) {
	err := p.prepare(ctx, next.PrepareRequest)
	switch {
	case err == nil, errors.Is(err, errWanted), ctx.Err() != nil:
	case !errors.Is(err, locking.ErrHeld):
		p.log.DebugContext(ctx, "next tree not prepared", "repo", next.Repo, "ref", next.Ref, "error", err)
	case next.tries < prepareTries:
		next.tries++
		p.add(next)
	}
}

func (p *preparer) prepare(ctx context.Context, req volume.PrepareRequest) error {
	floor, err := p.volume.Floor(req.Repo)
	if err != nil {
		return err
	}
	lock := locking.Request{Key: req.Repo.Key(), Job: "prepare", Operation: "prepare", IfHeld: locking.Yield, Floor: floor}
	return p.locker.Do(ctx, lock, func(ctx context.Context, lease *locking.Lease) error {
		ctx, cancel := context.WithCancelCause(ctx)
		var watching sync.WaitGroup
		defer watching.Wait()
		defer cancel(nil)
		watching.Go(func() {
			select {
			case <-lease.Wanted():
				cancel(errWanted)
			case <-ctx.Done():
			}
		})
		req.Fence = lease.Fence()
		_, err := p.volume.Prepare(ctx, req)
		return err
	})
}
