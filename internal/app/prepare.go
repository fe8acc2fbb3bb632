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
	"lockstep/router"
)

// preparer prepares the next trees of pushed refs, one at a time, once their pushes have settled. It uses a spare work slot
// and a lease that yields, and stops as soon as anybody wants either. A repository that is too busy is left alone until its
// next push.
type preparer struct {
	volume *volume.Volume
	locker *locking.Locker
	slots  *router.Slots
	log    *slog.Logger

	mu    sync.Mutex
	tasks map[preparation]*preparing
	added chan struct{} // has a token if a task was added
}

// preparation names what to prepare. The repository is as in a lock's key.
type preparation struct {
	key string
	ref events.Ref
}

// preparing is when to try to prepare a tree.
type preparing struct {
	repo  events.RepoPath
	due   time.Time
	delay time.Duration // before due
}

const (
	prepareAfter   = 100 * time.Millisecond // delay after a push: until it has settled, and more of a burst may have come
	prepareAtLast  = time.Minute            // a longer delay ends the attempts
	maxPreparation = 1000                   // tasks; more are dropped
)

func newPreparer(log *slog.Logger) *preparer {
	return &preparer{log: log, tasks: map[preparation]*preparing{}, added: make(chan struct{}, 1)}
}

// add is called after each push, see [volume.Config].
func (p *preparer) add(repo events.RepoPath, ref events.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := preparation{repo.Key(), ref}
	if t := p.tasks[name]; t != nil { // pushes come faster than preparations
		t.delay = max(t.delay, prepareAfter)
		t.due = time.Now().Add(t.delay)
		return
	}
	if len(p.tasks) >= maxPreparation {
		return
	}
	p.tasks[name] = &preparing{repo: repo, due: time.Now().Add(prepareAfter), delay: prepareAfter}
	select {
	case p.added <- struct{}{}:
	default:
	}
}

// next returns the task that is due first, or false.
func (p *preparer) next() (name preparation, first preparing, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, t := range p.tasks {
		if !ok || t.due.Before(first.due) {
			name, first, ok = n, *t, true
		}
	}
	return name, first, ok
}

// tried removes a task, or postpones it if it was in somebody's way.
func (p *preparer) tried(name preparation, done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.tasks[name]
	if t.delay *= 2; done || t.delay > prepareAtLast {
		delete(p.tasks, name)
		return
	}
	t.due = time.Now().Add(t.delay)
}

// Run prepares trees until ctx is done.
func (p *preparer) Run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		name, task, ok := p.next()
		wait := time.Hour
		if ok {
			wait = time.Until(task.due)
		}
		if wait <= 0 {
			err := p.prepare(ctx, task.repo, name.ref)
			inTheWay := errors.Is(err, errWanted) || errors.Is(err, locking.ErrHeld)
			if err != nil && !inTheWay && ctx.Err() == nil {
				p.log.DebugContext(ctx, "next tree not prepared", "repo", task.repo, "ref", name.ref, "error", err)
			}
			p.tried(name, !inTheWay)
			if ctx.Err() != nil {
				return
			}
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-p.added:
		case <-timer.C:
		}
	}
}

// errWanted means that somebody waited for the lease or the slot.
var errWanted = errors.New("the lease or the slot is wanted")

// prepare prepares one tree unless the repository or all slots are in use.
func (p *preparer) prepare(ctx context.Context, repo events.RepoPath, ref events.Ref) error {
	spare := p.slots.Spare()
	if spare == nil {
		return errWanted
	}
	defer spare.Release()
	ctx, stop := unless(ctx, spare.Wanted()) // also while Redis is asked for the lease
	defer stop()
	floor, err := p.volume.Floor(repo)
	if err != nil {
		return err
	}
	request := locking.Request{Key: repo.Key(), Job: "prepare", Operation: "prepare", IfHeld: locking.Skip, Yields: true, Floor: floor}
	return p.locker.Do(ctx, request, func(ctx context.Context, lease *locking.Lease) error {
		ctx, stop := unless(ctx, lease.Wanted())
		defer stop()
		_, err := p.volume.Prepare(ctx, volume.PrepareRequest{Repo: repo, Ref: ref, Fence: lease.Fence()})
		return err
	})
}

// unless returns a context that is cancelled with errWanted once wanted is closed. The caller calls stop.
func unless(parent context.Context, wanted <-chan struct{}) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-wanted:
			cancel(errWanted)
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		cancel(nil)
		watching.Wait()
	}
}
