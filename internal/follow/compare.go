package follow

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/volume"
)

// isPublished reports whether a ref is published at its commit, under its name. It is false while its copy is
// to be purged.
func isPublished(published volume.Published, ref Ref) bool {
	return published.Commits[ref.Ref] == ref.Commit && (published.Plain == ref.Ref) == ref.Default &&
		!published.Incomplete[ref.Ref]
}

// isOurs reports whether a repository was fetched from the reader.
func (f *Follower) isOurs(published volume.Published) bool {
	return strings.HasPrefix(published.Remote, f.cfg.Reader.GitURLs())
}

// compare compares a repository with what the token reads of it, and requests the syncs and removals that are needed.
func (f *Follower) compare(ctx context.Context, repo events.RepoPath) {
	if !f.selects(repo) {
		f.remove(ctx, repo, true)
		return
	}
	if !f.compared[repo.Key()] {
		f.compared[repo.Key()] = true
		f.askRefs(ctx, repo)
	}
}

func (f *Follower) askRefs(ctx context.Context, repo events.RepoPath) {
	key, number := repo.Key(), f.position.number
	f.ask(ctx, func() func() {
		f.requests <- struct{}{}
		refs, err := f.cfg.Reader.Refs(ctx, repo)
		<-f.requests
		return func() {
			delete(f.compared, key)
			f.noteRefs(ctx, repo, refs, err, number)
			if f.touched[key] > number { // it may have been answered before that frame
				f.position.ask(keyOf(repo, events.Ref{}))
				if f.checks[key] == nil {
					f.checkSoon(repo)
				} else {
					f.checkLater(repo) // busy or failing: with a backoff
				}
			}
		}
	})
}

// noteRefs records the refs that the token reads of a repository, requested after the frame with this number.
func (f *Follower) noteRefs(ctx context.Context, repo events.RepoPath, refs []Ref, err error, number uint64) {
	switch {
	case errors.Is(err, ErrNotFound):
		if !f.postpones(repo, f.mayBeListed(repo)) {
			f.remove(ctx, repo, false)
		}
	case err != nil:
		f.cfg.Log.WarnContext(ctx, "refs of the reader cannot be listed, will retry", "repo", repo.String(), "error", err)
		f.retry(repo)
	default:
		f.forget(repo, number)
		f.compareWith(ctx, repo, refs)
	}
}

// compareWith compares a repository with refs of the reader.
func (f *Follower) compareWith(ctx context.Context, repo events.RepoPath, refs []Ref) {
	published, _, err := f.cfg.Volume.Published(repo)
	if err != nil {
		f.cfg.Log.WarnContext(ctx, "volume cannot be read, will retry", "repo", repo.String(), "error", err)
		f.retry(repo)
		return
	}
	listed, hasDefault := map[events.Ref]bool{}, false
	all := f.cfg.Record.Deepened() || f.cfg.SyncAll && !f.Status().CaughtUp
	for _, ref := range refs {
		listed[ref.Ref] = true
		hasDefault = hasDefault || ref.Default
		if all || !isPublished(published, ref) || !f.hasHistory(repo, ref) {
			f.sync(ctx, repo, ref)
		}
	}
	if hasDefault || published.Plain.IsZero() {
		delete(f.gone, repo.Key())
	}
	for ref := range published.Commits {
		isPlain := ref == published.Plain
		// the sync of the new default branch replaces the former
		if !f.isOurs(published) || isPlain && hasDefault || listed[ref] && !isPlain {
			continue
		}
		if isPlain && f.postpones(repo, false) {
			continue
		}
		f.request(ctx, job{repo: repo, key: keyOf(repo, ref)}, events.Change{
			Type: events.ChangeRemoved, Repo: repo, URL: published.Remote, Ref: ref, Force: isPlain,
		})
		if listed[ref] { // no longer the default branch: published under its own name
			f.sync(ctx, repo, refs[slices.IndexFunc(refs, func(r Ref) bool { return r.Ref == ref })])
		}
	}
}

// removeAfter is how long a repository, or its default branch, must be missing at the reader before
// it is removed here. While the default branch changes, an app reads nothing of a repository until
// its own sync is settled.
const removeAfter = 30 * time.Second

// knownGone is the value in gone of a repository that the reader has reported as removed.
var knownGone = time.Time{}.Add(1)

// mayBeListed reports whether the reader's list may have a repository. Only a list proves that a
// response 404 is from the reader and not from a proxy.
func (f *Follower) mayBeListed(repo events.RepoPath) bool {
	_, listed := f.repos[repo.Key()]
	return (listed || f.listed == 0) && !f.gone[repo.Key()].Equal(knownGone)
}

// postpones reports whether it is too early to remove a repository, or its default branch, which is then
// compared again. listed says that it is in the reader's list.
func (f *Follower) postpones(repo events.RepoPath, listed bool) bool {
	if _, here, err := f.cfg.Volume.Published(repo); err == nil && !here {
		return false
	}
	key := repo.Key()
	if f.gone[key].IsZero() {
		f.gone[key] = time.Now()
	}
	if !listed && time.Since(f.gone[key]) >= removeAfter {
		delete(f.gone, key)
		return false
	}
	f.retry(repo)
	return true
}

// forget drops the requests that frames up to a number opened for a repository, which is about to be compared.
func (f *Follower) forget(repo events.RepoPath, number uint64) {
	for key := range f.position.open {
		if strings.HasPrefix(key, repo.Key()+" ") {
			f.position.settled(key, number)
		}
	}
}

// sync requests a sync of a ref. While the stream only repeats what was listed, the commit may be an older
// one and is not announced.
func (f *Follower) sync(ctx context.Context, repo events.RepoPath, ref Ref) {
	change := events.Change{
		Type: events.ChangePushed, Repo: repo, URL: f.cfg.Reader.Remote(repo), Ref: ref.Ref, Depth: f.depthOf(ref),
	}
	if ref.Default {
		change.Ref = events.Ref{}
	}
	if f.live && ref.Ref.Commit() == "" {
		change.After = ref.Commit
	}
	f.request(ctx, job{repo: repo, key: keyOf(repo, ref.Ref)}, change)
}

// depthOf returns the history to keep of a ref: no more than the reader has, which refuses to send all
// history of a repository of which it keeps less.
func (f *Follower) depthOf(ref Ref) events.Depth {
	if ref.Depth.Covers(f.cfg.Depth) {
		return f.cfg.Depth
	}
	return max(ref.Depth, 1)
}

// hasHistory reports whether a published ref has the history to keep.
func (f *Follower) hasHistory(repo events.RepoPath, ref Ref) bool {
	depth := f.depthOf(ref)
	if events.Depth(1).Covers(depth) {
		return true
	}
	here, ok, err := f.cfg.Volume.Locate(repo, ref.Ref)
	return err == nil && ok && here.Depth.Covers(depth)
}

// remove requests the removal of a repository that is published here. Unless forced, the reader is asked once
// more, under the lease.
func (f *Follower) remove(ctx context.Context, repo events.RepoPath, force bool) {
	f.forget(repo, f.position.number)
	published, here, err := f.cfg.Volume.Published(repo)
	switch {
	case err != nil:
		f.retry(repo)
	case here && f.isOurs(published):
		f.request(ctx, job{repo: repo, key: keyOf(repo, events.Ref{})}, events.Change{
			Type: events.ChangeRemoved, Repo: repo, URL: published.Remote, Force: force,
		})
	}
}

// Source is that of the changes. Like a verified webhook, the stream announces commits.
const Source = "/hooks/follow"

// request publishes a change for the worker.
func (f *Follower) request(ctx context.Context, j job, change events.Change) {
	change.Source, change.Credential = Source, f.cfg.Credential
	f.position.ask(j.key)
	j.number = f.position.number
	if err := f.publish(ctx, j, change); err != nil && ctx.Err() == nil {
		f.cfg.Log.WarnContext(ctx, "change cannot be published, will retry", "repo", j.repo.String(), "error", err)
		f.checkLater(j.repo)
	}
}

func (f *Follower) publish(ctx context.Context, j job, change events.Change) error {
	change, err := events.NewChange(change)
	if err != nil {
		return err
	}
	if err := f.cfg.Publish(ctx, change); err != nil {
		return err
	}
	f.jobs[change.ID] = j
	return nil
}
