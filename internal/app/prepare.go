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

// preparer links the next trees of pushed refs, one at a time. It takes a slot and the lease only if they are free,
// gives them back as soon as anybody wants one of them, and tries again later, unless another push has followed.
type preparer struct {
	volume *volume.Volume
	locker *locking.Locker
	slots  *volume.Slots
	log    *slog.Logger
	due    chan preparation
}

type preparation struct {
	volume.PrepareRequest
	tries int
}

const (
	prepareAfter    = 100 * time.Millisecond // most pushes have settled by then; doubles with each try
	prepareTries    = 10                     // while the repository or all slots are in use: for 200 s
	maxPreparations = 1000                   // due at once; more are dropped
)

func newPreparer(slots *volume.Slots, log *slog.Logger) *preparer {
	return &preparer{slots: slots, log: log, due: make(chan preparation, maxPreparations)}
}

// add prepares a tree later.
func (p *preparer) add(next preparation) {
	time.AfterFunc(prepareAfter<<next.tries, func() {
		select {
		case p.due <- next:
		default:
		}
	})
}

// Run prepares trees until ctx is done.
func (p *preparer) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-p.due:
			if p.volume.IsPreparable(next.PrepareRequest) {
				p.try(ctx, next)
			}
		}
	}
}

// try prepares a tree, or does so later if the repository or all slots are in use.
func (p *preparer) try(ctx context.Context, next preparation) {
	err := p.slots.TryDo(ctx, func(ctx context.Context) error { return p.prepare(ctx, next.PrepareRequest) })
	switch {
	case err == nil, ctx.Err() != nil:
	case !errors.Is(err, locking.ErrHeld) && !errors.Is(err, volume.ErrWanted):
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
				cancel(volume.ErrWanted)
			case <-ctx.Done():
			}
		})
		req.Fence = lease.Fence()
		_, err := p.volume.Prepare(ctx, req)
		return err
	})
}
