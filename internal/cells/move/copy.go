package move

import (
	"context"
	"fmt"
	"slices"

	"lockstep/events"
	"lockstep/internal/ext/lfs"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/ext/views"
	"lockstep/internal/git/wire"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// copy brings the new cell's volume up to what is published in the old cell, from the old cell's reader. It
// fetches only what is missing. If trees have files that Git does not carry, it copies nothing: see
// [attempt.fetch]. The copy is bound to the repository's own remote, from which later syncs fetch. Nobody
// looks for it before the directory places the repository here, so publishing it early harms none.
func (a *attempt) copy(ctx context.Context, here *locking.Lease) error {
	known, err := a.old.states.Load(ctx, a.req.Repo)
	if err != nil {
		return err
	}
	set, err := a.old.watches.Of(ctx, a.req.Repo)
	if err != nil {
		return err
	}
	if err := a.new.watches.CheckReceive(ctx, set.Watches); err != nil {
		return err
	}
	heads := known.Heads()
	if len(heads) == 0 || slices.ContainsFunc(set.Watches, exceedsGit) {
		return a.discard(ctx, here)
	}
	from, err := newSource(a.old.Name, a.old.Reader, a.cfg.Token, a.cfg.Transport)
	if err != nil {
		return err
	}
	refs, err := from.refs(ctx, a.req.Repo)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(refs, func(r ref) bool { return r.LFS || r.Submodules != events.SubmodulesOff }) {
		return a.discard(ctx, here)
	}
	listed, hasDefault := map[events.Ref]bool{}, false
	for _, r := range refs {
		listed[r.Ref] = true
		hasDefault = hasDefault || r.Default
		if err := a.copyRef(ctx, here, from, known, r); err != nil {
			return err
		}
	}
	for name := range heads {
		if parsed, err := events.ParseRef(name); err != nil || !listed[parsed] {
			return events.Errorf(events.Retryable, events.ClassConflict, "%s of %s is not at the old cell's reader",
				name, a.req.Repo)
		}
	}
	return a.dropRefs(ctx, here, listed, hasDefault)
}

// copyRef copies one ref, unless the volume has it.
func (a *attempt) copyRef(ctx context.Context, here *locking.Lease, from source, known state.Repo, r ref) error {
	published, _, err := a.cfg.Volume.Published(a.req.Repo)
	if err != nil {
		return err
	}
	if published.Commits[r.Ref] == r.Commit && (published.Plain == r.Ref) == r.Default {
		now, _, err := a.cfg.Volume.Locate(a.req.Repo, r.Ref)
		if err != nil {
			return err
		}
		if now.Depth.Covers(r.Depth) || now.Depth == r.Depth {
			return nil
		}
	}
	req := volume.SyncRequest{
		Repo: a.req.Repo, URL: known.Remote(), Via: from.git(a.req.Repo), Ref: r.Ref, Fence: here.Fence(),
		Depth: r.Depth, Confirm: here.Confirm,
	}
	if a.cfg.Token != "" {
		req.Auth = wire.Auth{BearerToken: a.cfg.Token}
	}
	if r.Default {
		req.Ref = events.Ref{}
	}
	synced, err := a.cfg.Volume.Sync(ctx, req)
	if err != nil {
		return fmt.Errorf("copy %s from cell %s: %w", r.Ref, a.old.Name, retryable(err))
	}
	if synced.Ref != r.Ref { // the default branch has changed since it was listed
		return events.Errorf(events.Retryable, events.ClassConflict, "copy %s from cell %s: got %s", r.Ref, a.old.Name,
			synced.Ref)
	}
	return nil
}

// retryable returns an error of copying as one that another attempt may not meet: the reader restarts, a ref
// goes. What the new cell's volume refuses is final.
func retryable(err error) error {
	switch events.ClassOf(err) {
	case events.ClassAuth, events.ClassNotFound, events.ClassNoRef:
		return events.Errorf(events.Retryable, events.ClassOf(err), "%w", err)
	}
	return err
}

// dropRefs removes what the volume has too much: refs that are gone since an earlier attempt, or since the
// repository was here before.
func (a *attempt) dropRefs(
	ctx context.Context, here *locking.Lease, listed map[events.Ref]bool, hasDefault bool,
) error {
	published, _, err := a.cfg.Volume.Published(a.req.Repo)
	if err != nil {
		return err
	}
	for one := range published.Commits {
		if listed[one] {
			continue
		}
		_, err := a.cfg.Volume.RemoveRef(ctx, volume.RemoveRequest{
			Repo: a.req.Repo, Ref: one, Fence: here.Fence(), Force: true, Plain: !hasDefault, Confirm: here.Confirm,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// discard removes a clone that is left over from an earlier attempt, or since the repository was here before.
func (a *attempt) discard(ctx context.Context, here *locking.Lease) error {
	_, err := a.cfg.Volume.Remove(ctx, volume.RemoveRequest{
		Repo: a.req.Repo, Fence: here.Fence(), Force: true, Confirm: here.Confirm,
	})
	return err
}

// exceedsGit reports whether a watch asks for files that Git does not carry: from Git LFS, of submodules, or
// trees of views.
func exceedsGit(w watch.Watch) bool {
	return lfs.Of(w).Mode == lfs.Fetch || submodules.Of(w).Mode != events.SubmodulesOff || views.Of(w).Trees
}

// fetch requests from the repository's remote what copy has left out. known is the state in the old cell. The
// changes wait until the repository is activated.
func (a *attempt) fetch(ctx context.Context, known state.Repo) error {
	published, _, err := a.cfg.Volume.Published(a.req.Repo)
	if err != nil {
		return err
	}
	for name := range known.Heads() {
		if parsed, err := events.ParseRef(name); err == nil && published.Commits[parsed] == "" {
			if err := a.cfg.Fetch(ctx, a.req.Repo, known); err != nil {
				return fmt.Errorf("request what was not copied: %w", err)
			}
			break
		}
	}
	a.done("requested")
	return nil
}
