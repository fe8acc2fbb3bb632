package follow

import (
	"context"
	"errors"
	"time"

	"lockstep/events"
)

// job is a published change without a result.
type job struct {
	repo   events.RepoPath
	to     events.RepoPath // of a move
	key    string          // in the position
	number uint64          // of the frame that it covers
}

// keyOf identifies a ref in the position; the zero ref the whole repository.
func keyOf(repo events.RepoPath, ref events.Ref) string { return repo.Key() + " " + ref.String() }

// Settle passes a result of the local worker to the follower. It returns once Run or Wipe has recorded it, or
// ctx is done.
func (f *Follower) Settle(ctx context.Context, result events.Result) {
	select {
	case f.settled <- result:
	case <-ctx.Done():
	}
}

// apply turns frames and lists into changes, and tracks their results.
func (f *Follower) apply(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	defer f.keep(context.WithoutCancel(ctx))
	defer f.asking.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case note := <-f.answers:
			note()
		case in := <-f.incoming:
			f.take(ctx, in)
		case result := <-f.settled:
			f.settle(result)
		case <-tick.C:
			f.due(ctx)
			f.keep(ctx)
		}
		f.update(ctx)
	}
}

// take handles a message from connect.
func (f *Follower) take(ctx context.Context, in incoming) {
	if in.frame == nil {
		f.setStatus(func(s *Status) { s.Connected, s.Refused = false, errors.Is(in.err, ErrRefused) })
		return
	}
	f.position.frame(in.frame.Cursor)
	switch {
	case in.opened:
		f.live = !in.resume // until a heartbeat, the stream repeats older results
		f.cfg.Log.InfoContext(ctx, "connected to the reader", "url", f.cfg.Reader.URL())
		f.setStatus(func(s *Status) { s.Connected, s.Refused = true, false })
		if in.restart {
			f.restart = true
			f.keepFirst(ctx, in.frame.Cursor)
			f.list(ctx, true)
		}
		if in.frame.Data == nil {
			return
		}
	case in.frame.Data == nil: // a heartbeat: all earlier results were read
		f.live = true
		f.checkMissing(ctx)
		return
	}
	result, err := events.ParseResult(in.frame.Data)
	if err != nil {
		f.cfg.Log.WarnContext(ctx, "a result of the reader cannot be decoded, skipped", "error", err)
		return
	}
	f.follow(ctx, result)
}

// follow requests the changes that a result of the reader requires.
func (f *Follower) follow(ctx context.Context, result events.Result) {
	f.touch(result)
	switch result.Type {
	case events.ResultSynced, events.ResultView:
		if f.selects(result.Repo) && result.After != "" {
			f.followRef(ctx, result.Repo, Ref{Ref: result.Ref, Commit: result.After, Default: result.IsDefault()})
		}
	case events.ResultRemoved:
		if result.Ref.IsZero() {
			f.gone[result.Repo.Key()] = knownGone
		}
		f.compare(ctx, result.Repo)
	case events.ResultFailed:
		if result.Class == events.ClassAuth || result.Class == events.ClassNotFound { // the app may read nothing any more
			delete(f.repos, result.Repo.Key()) // so that a 404 is believed without a list
			f.compare(ctx, result.Repo)
		}
	case events.ResultMoved:
		f.followMove(ctx, result.Repo, result.To)
	case events.ResultPurged:
		f.followPurge(ctx, result.Repo)
	}
}

// followRef syncs a ref unless its commit is published already. A result does not say how much history the
// reader has, so if more than a commit is configured, the refs are requested first.
func (f *Follower) followRef(ctx context.Context, repo events.RepoPath, ref Ref) {
	key := keyOf(repo, ref.Ref)
	published, _, err := f.cfg.Volume.Published(repo)
	if _, open := f.position.open[key]; err == nil && !open && isPublished(published, ref) {
		return
	}
	if !events.Depth(1).Covers(f.cfg.Depth) {
		f.position.ask(keyOf(repo, events.Ref{})) // until the answer, which requests the sync
		f.compare(ctx, repo)
		return
	}
	f.sync(ctx, repo, ref)
}

// followMove moves a repository that is published here.
func (f *Follower) followMove(ctx context.Context, from, to events.RepoPath) {
	published, here, err := f.cfg.Volume.Published(from)
	if err != nil || !here || !f.isOurs(published) || !f.selects(to) || from.String() == to.String() {
		f.compare(ctx, from)
		f.compare(ctx, to)
		return
	}
	f.request(ctx, job{repo: from, to: to, key: keyOf(from, events.Ref{})}, events.Change{
		Type: events.ChangeMoved, Repo: from, To: to, URL: f.cfg.Reader.Remote(to),
	})
}
