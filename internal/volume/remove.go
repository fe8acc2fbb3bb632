package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/wire"
)

// RemoveRequest asks that a repository be taken off the volume.
type RemoveRequest struct {
	Repo  events.RepoPath
	URL   string    // the remote to ask; empty for the one bound
	Auth  wire.Auth // for this operation alone; zero is anonymous
	Fence uint64    // of the lease held on Repo; above zero
	Force bool      // do not ask the remote

	Foreign bool // as in [SyncRequest]

	// Confirm is as in [SyncRequest].
	Confirm func(context.Context) error
}

// Remove takes a repository off the volume: its published names first, then its trees and objects.
// Unless forced, it asks the remote, and refuses while the remote still has the repository or does
// not let it be known. While a reader has a tree pinned, all but that tree's needs goes, and the error
// is contention: the same request is to come again. It reports false when there was nothing to remove.
//
// What is left of a repository that has moved away stays for its grace, whether another one is removed at its
// path or none. The fence stays, so that holders older than the removal remain stale.
func (v *Volume) Remove(ctx context.Context, req RemoveRequest) (removed bool, err error) {
	if err := v.checkRequest(req.Repo, req.Fence); err != nil {
		return false, err
	}
	f := v.folder(req.Repo)
	removed, err = v.remove(ctx, f, req)
	if err != nil {
		return false, fmt.Errorf("remove %s: %w", req.Repo, f.explain(ctx, req.Fence, err))
	}
	return removed, nil
}

func (v *Volume) remove(ctx context.Context, f folder, req RemoveRequest) (bool, error) {
	if err := f.record(ctx, req.Fence); err != nil {
		return false, err
	}
	v.done("fenced")
	b, bound, err := f.readBinding()
	if err != nil {
		return false, err
	}
	if !bound {
		f.emptyTrash() // of a removal that crashed on its last step
		return false, nil
	}
	if req.URL != "" {
		if err := b.check(req.URL); err != nil {
			return false, err
		}
	}
	if err := v.checkGone(ctx, b, req); err != nil {
		return false, err
	}
	v.done("listed")
	if req.Confirm != nil {
		if err := req.Confirm(ctx); err != nil {
			return false, fmt.Errorf("confirm the lease: %w", err)
		}
	}
	v.done("confirmed")
	err = f.guarded(ctx, req.Fence, func() error { return v.unpublishAll(f, b) })
	f.emptyTrash()
	if err != nil {
		return false, err
	}
	v.done("removed")
	return true, nil
}

// checkGone returns nil when the remote says that it has no such repository.
func (v *Volume) checkGone(ctx context.Context, b binding, req RemoveRequest) error {
	if req.Force {
		return nil
	}
	url := req.URL
	if url == "" {
		url = b.Remote
	}
	r, err := v.net.Dial(url, req.Auth, req.Foreign, v.cfg.wireLimits())
	if err != nil {
		return err
	}
	defer r.Close()
	err = r.List(ctx)
	switch class := events.ClassOf(err); {
	case err == nil, class == events.ClassNoRef: // an empty repository is there, too
		return conflict("the remote still has the repository; publish the removal with force to remove it anyway")
	case class == events.ClassNotFound:
		return nil
	}
	return fmt.Errorf("ask whether the remote still has the repository: %w", err)
}

// unpublishAll unpublishes first, so that no name ever names a tree that is going. What it leaves undone
// when the process dies, the same request does: the binding, by which the repository is known, goes
// last. It is left undone, too, while a reader has a tree pinned. The caller holds the file lock.
func (v *Volume) unpublishAll(f folder, b binding) error {
	links, err := v.allLinks(f, b)
	if err != nil {
		return err
	}
	for path, tree := range links {
		if b.MovedAway.covers(tree) {
			continue
		}
		if err := unpublish(path); err != nil {
			return err
		}
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
	return f.writeBinding(binding{Repo: b.Repo, MovedAway: b.MovedAway})
}

// unpublish takes a published name away.
func unpublish(path string) error {
	err := os.Remove(path)
	if err == nil {
		err = disk.SyncDir(filepath.Dir(path))
	}
	return disk.Error("unpublish", err)
}

// discardTrees throws away every tree that no reader has pinned, and fails if there are others. Those of a
// repository that has moved away stay.
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
		return events.Errorf(events.Contention, events.ClassBusy, "readers have %d of its trees pinned; the rest goes once they let go", pinned)
	}
	return nil
}
