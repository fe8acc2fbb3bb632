package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"lockstep/events"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// preparer links the next trees of pushed refs, one at a time, once their pushes have settled. It takes a lease only if that
// is free, and stops as soon as anybody wants it. What it cannot do now is left to the next push.
type preparer struct {
	volume *volume.Volume
	locker *locking.Locker
	slots  *volume.Slots
	log    *slog.Logger
	pushed chan preparation
}

type preparation struct {
	repo events.RepoPath
	ref  events.Ref
	due  time.Time
}

const (
	prepareAfter    = 100 * time.Millisecond // a push has settled by then, and more of a burst may have come
	maxPreparations = 1000                   // that wait; more are dropped
)

func newPreparer(slots *volume.Slots, log *slog.Logger) *preparer {
	return &preparer{slots: slots, log: log, pushed: make(chan preparation, maxPreparations)}
}

// add is called after each push, see [volume.Config].
func (p *preparer) add(repo events.RepoPath, ref events.Ref) {
	select {
	case p.pushed <- preparation{repo, ref, time.Now().Add(prepareAfter)}:
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
			err := p.prepare(ctx, next)
			if err != nil && !errors.Is(err, errWanted) && !errors.Is(err, locking.ErrHeld) && ctx.Err() == nil {
				p.log.DebugContext(ctx, "next tree not prepared", "repo", next.repo, "ref", next.ref, "error", err)
			}
		}
	}
}

// errWanted means that somebody waits for the lease.
var errWanted = errors.New("the lease is wanted")

// prepare prepares a tree unless the repository is in use or jobs wait for slots.
func (p *preparer) prepare(ctx context.Context, next preparation) error {
	if p.slots.AreWanted() {
		return nil
	}
	floor, err := p.volume.Floor(next.repo)
	if err != nil {
		return err
	}
	request := locking.Request{Key: next.repo.Key(), Job: "prepare", Operation: "prepare", IfHeld: locking.Yield, Floor: floor}
	return p.locker.Do(ctx, request, func(ctx context.Context, lease *locking.Lease) error {
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
		_, err := p.volume.Prepare(ctx, volume.PrepareRequest{Repo: next.repo, Ref: next.ref, Fence: lease.Fence()})
		return err
	})
}
