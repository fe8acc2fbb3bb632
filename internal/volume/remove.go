package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/wire"
)

// RemoveRequest is a request to remove a repository, or one of its refs, from the volume.
type RemoveRequest struct {
	Repo  events.RepoPath
	Ref   events.Ref // the ref to remove; ignored by [Volume.Remove]
	URL   string     // the remote; defaults to the bound one
	Auth  wire.Auth  // used only for this operation; zero is anonymous
	Fence uint64     // fence of the lease on Repo; above zero
	Force bool       // skip the check with the remote
	Plain bool       // also remove the plain name if it is published for Ref

	Foreign bool // as in [SyncRequest]

	// Confirm is as in [SyncRequest].
	Confirm func(context.Context) error

	Limiter wire.Limiter // as in [SyncRequest]
}

// Remove removes a repository: its published names first, then its trees and objects. Unless forced, it first
// checks with the remote, and fails if the repository still exists there or its state is unknown. While
// readers pin trees, it removes everything else and fails with contention; the caller retries. It returns
// false if there was nothing to remove.
//
// Files of a repository that has moved away stay for their grace. The fence stays until [Volume.Forget], so that
// holders older than the removal remain stale.
func (v *Volume) Remove(ctx context.Context, req RemoveRequest) (removed bool, err error) {
	req.Ref = events.Ref{}
	return v.runRemoval(ctx, req, req.Repo.String(), v.remove)
}

// runRemoval calls remove with the binding of a repository that is on the volume. what is the subject of errors.
func (v *Volume) runRemoval(ctx context.Context, req RemoveRequest, what string,
	remove func(context.Context, folder, binding, RemoveRequest) (bool, error)) (removed bool, err error) {
	if err := v.checkRequest(req.Repo, req.Fence); err != nil {
		return false, err
	}
	f := v.folder(req.Repo)
	b, bound, err := v.beginRemoval(ctx, f, req)
	switch {
	case err == nil && bound:
		req.URL = cmp.Or(req.URL, b.Remote)
		removed, err = remove(ctx, f, b, req)
		v.janitor.add(f)
	case err == nil: // a poll may have listed refs, or a removal has crashed
		err = f.guarded(ctx, req.Fence, func() error { return f.discard(f.listed()) })
		f.emptyTrash()
	}
	if err != nil {
		return false, fmt.Errorf("remove %s: %w", what, f.explain(ctx, req.Fence, err))
	}
	return removed, nil
}

// beginRemoval records the fence, and checks that the request is for the bound remote.
func (v *Volume) beginRemoval(ctx context.Context, f folder, req RemoveRequest) (b binding, bound bool, err error) {
	if err := f.record(ctx, req.Fence); err != nil {
		return binding{}, false, err
	}
	v.done("fenced")
	b, bound, err = f.readBinding()
	if err == nil && bound && req.URL != "" {
		err = b.check(req.URL)
	}
	return b, bound, err
}

func (v *Volume) remove(ctx context.Context, f folder, b binding, req RemoveRequest) (bool, error) {
	if err := v.checkGone(ctx, req); err != nil {
		return false, err
	}
	err := f.guarded(ctx, req.Fence, func() error { return v.unpublishAll(f, b) })
	f.emptyTrash()
	if err != nil {
		return false, err
	}
	v.done("removed")
	return true, nil
}

// checkGone returns nil if the remote no longer has the repository, or the requested ref, and the lease is still held.
func (v *Volume) checkGone(ctx context.Context, req RemoveRequest) error {
	what := cmp.Or(req.Ref.String(), "the repository")
	if !req.Force {
		r, err := v.net.DialAndList(ctx, req.URL, req.Auth, req.Foreign, v.cfg.wireLimits(req.Limiter),
			cmp.Or(req.Ref.String(), "HEAD"))
		switch {
		case err == nil:
			r.Close()
			if req.Ref.IsZero() || r.Has(req.Ref.String()) { // an empty repository exists, too
				return conflict("the remote still has %s; publish the removal with force to remove it anyway", what)
			}
		case events.ClassOf(err) != events.ClassNotFound:
			return fmt.Errorf("check whether the remote still has %s: %w", what, err)
		}
	}
	v.done("listed")
	return v.confirm(ctx, req.Confirm)
}

// unpublishAll removes the names, then the trees and objects, so that no name links to a missing tree. The binding goes
// last, and stays while a tree is pinned, so that the same request can continue. The caller holds the file lock.
func (v *Volume) unpublishAll(f folder, b binding) error {
	links, err := v.withSubtrees(v.allLinks, f, b)
	if err != nil {
		return err
	}
	dirs, err := f.subtreeFolders(b)
	if err != nil {
		return err
	}
	maps.DeleteFunc(links, func(_, tree string) bool { return b.MovedAway.covers(tree) })
	if err := unpublish(slices.Collect(maps.Keys(links))...); err != nil {
		return err
	}
	if err := v.forgetFolders(f, dirs); err != nil {
		return err
	}
	v.done("unpublished")
	if err := f.discardTrees(b.MovedAway); err != nil {
		return err
	}
	if b.MovedAway == nil {
		return f.discardAll()
	}
	if err := f.discardStores(func(n int) bool { return n > b.MovedAway.Store }); err != nil {
		return err
	}
	// a repository that moved away has taken its own along
	if err := f.discardAt(append(f.carried(), f.prepared(), f.building())); err != nil {
		return err
	}
	return f.writeBinding(binding{Repo: b.Repo, MovedAway: b.MovedAway})
}

// unpublish removes published names, and the folders above them that are empty now; the volume's never is.
func unpublish(paths ...string) error {
	dirs := map[string]bool{}
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			return disk.Error("unpublish", err)
		}
		dirs[filepath.Dir(path)] = true
	}
	for dir := range dirs {
		if err := disk.SyncDir(dir); err != nil {
			return disk.Error("unpublish", err)
		}
	}
	for dir := range dirs {
		if err := removeEmpty(dir); err != nil {
			return err
		}
	}
	return nil
}

// removeEmpty removes a folder of published names if it is empty, and then those above it.
func removeEmpty(dir string) error {
	for err := unix.Rmdir(dir); err == nil || errors.Is(err, os.ErrNotExist); err = unix.Rmdir(dir) {
		dir = filepath.Dir(dir)
		// Another repository's holder may have removed it.
		if err := disk.SyncDir(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return disk.Error("unpublish", err)
		}
	}
	return nil
}

// discardTrees discards the trees. It keeps those that are pinned, and fails with contention if there are
// any. It skips those of a repository that has moved away.
func (f folder) discardTrees(left *tombstone) error {
	trees, err := disk.ReadDir(f.trees())
	if err != nil {
		return disk.Error("list the trees", err)
	}
	pinned := 0
	for _, tree := range trees {
		if left.covers(tree.Name()) {
			continue
		}
		gone, err := f.discardUnpinned(tree.Name())
		if err != nil {
			return err
		}
		if !gone {
			pinned++
		}
	}
	if pinned > 0 {
		return events.Errorf(events.Contention, events.ClassBusy,
			"readers have %d of its trees pinned; they are removed after these are closed", pinned)
	}
	return nil
}
