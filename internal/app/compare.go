package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redisx"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/volume/fsck"
	"lockstep/locking"
)

// comparer is the part of a patrol that finds modified published trees and requests their replacement. Only one worker of a
// deployment compares at a time. It reads without a lease, and acquires one to confirm and mark the differences.
type comparer struct {
	trees    *volume.Comparer
	replacer replacer
	redis    redis.UniversalClient
	key      string // claimed by the worker that compares
	worker   string
	interval time.Duration // between the beginnings of two passes, unless one takes longer
	altered  func(files int)
}

// Run compares all trees over and over until ctx is done.
func (c comparer) Run(ctx context.Context) {
	runEvery(ctx, c.interval, func() {
		claimed, err := c.redis.SetNX(ctx, c.key, c.worker, c.interval).Result()
		if err != nil || !claimed {
			return
		}
		ctx, done := context.WithCancel(ctx)
		var renewing sync.WaitGroup
		defer renewing.Wait()
		defer done()
		renewing.Go(func() {
			runEvery(ctx, c.interval/4, func() { _ = c.redis.SetXX(ctx, c.key, c.worker, c.interval).Err() })
		})
		c.pass(ctx)
	})
}

func (c comparer) pass(ctx context.Context) {
	log, began := c.replacer.log, time.Now()
	for altered, err := range c.trees.Pass(ctx) {
		if err == nil {
			err = c.replace(ctx, altered)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, locking.ErrUnavailable), redisx.Unavailable(err):
			log.DebugContext(ctx, "comparison stopped early, redis is unavailable", "error", err)
			return
		case err != nil:
			log.WarnContext(ctx, "cannot compare the trees of a repository", "repo", altered.Repo, "error", err)
		}
	}
	log.DebugContext(ctx, "trees compared", "took", time.Since(began))
}

func (c comparer) replace(ctx context.Context, altered volume.Altered) error {
	report, err := c.replacer.verify(ctx, volume.VerifyRequest{Repo: altered.Repo, Paths: altered.Paths})
	if err != nil || report.Found == 0 {
		return err
	}
	c.altered(len(altered.Paths))
	c.replacer.log.WarnContext(ctx, "published tree was altered, will be replaced",
		"repo", altered.Repo, "trees", report.Marked, "files", len(altered.Paths), "first", altered.Paths[0])
	return nil
}

// replacer marks damaged trees and requests the syncs that replace them.
type replacer struct {
	volume  *volume.Volume
	locker  *locking.Locker
	states  *state.Store
	publish func(context.Context, events.Change) error
	source  string // of the changes that it publishes
	log     *slog.Logger
}

// verify verifies and repairs a repository under its lease, and requests the syncs that replace what is damaged. The report of a
// repository that was removed meanwhile is zero.
func (r replacer) verify(ctx context.Context, req volume.VerifyRequest) (report fsck.Report, err error) {
	req.Repair = true
	err = WithLease(ctx, r.volume, r.locker, req.Repo, "verify", locking.WaitInLine, func(ctx context.Context, fence uint64) error {
		req.Fence = fence
		report, err = r.volume.Verify(ctx, req)
		if err != nil || report.Found == 0 {
			return err
		}
		return r.request(ctx, req.Repo)
	})
	if events.ClassOf(err) == events.ClassNotFound {
		return fsck.Report{}, nil
	}
	return report, err
}

// request requests what is not published in an intact tree.
func (r replacer) request(ctx context.Context, repo events.RepoPath) error {
	known, err := r.states.Load(ctx, repo)
	if err != nil {
		return err
	}
	return r.requestOf(ctx, repo, known)
}

// requestOf requests a poll, which requests the syncs of watched refs, and syncs of other refs that are not published in an intact
// tree. If several credentials were used for such a ref, it waits for its next change: it is unknown which app has which.
func (r replacer) requestOf(ctx context.Context, repo events.RepoPath, known state.Repo) error {
	published, _, err := r.volume.Published(repo)
	if err != nil {
		return err
	}
	changes := []events.Change{{Type: events.ChangeDue, Repo: repo}}
	for _, given := range known.AllGiven() {
		ref, err := events.ParseRef(given.Ref)
		if err != nil || published.Commits[ref] != "" || known.OnlyWatched(ref) {
			continue
		}
		if change, ok := resync(known, given.App, ref); ok {
			change.Repo, change.Submodules = repo, published.Submodules[ref]
			changes = append(changes, change)
		}
	}
	for _, change := range changes {
		change.Source = r.source
		change, err := events.NewChange(change)
		if err == nil {
			err = r.publish(ctx, change)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// resync returns a change that requests again what an app has been given.
func resync(known state.Repo, app string, ref events.Ref) (events.Change, bool) {
	credential, answer, ok := known.Source(ref)
	if !ok {
		return events.Change{}, false
	}
	change := events.Change{URL: answer.URL, Ref: ref, App: app, Credential: credential}
	head := known.Head(ref)
	if answer, ok := known.RemoteRef(answer.URL, events.Ref{}, credential); ok && answer.Ref == ref {
		change.Ref = events.Ref{} // the default branch
	}
	if head != answer.Commit { // it was pinned
		change.After, change.Pin = head, true
	}
	return change, true
}
