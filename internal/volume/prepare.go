package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/wire"
)

// PrepareRequest asks for the next tree of a ref.
type PrepareRequest struct {
	Repo  events.RepoPath
	Ref   events.Ref
	Tree  string // published for Ref, relative to the root: once another is, there is nothing to prepare; optional
	Fence uint64 // of the lease held on Repo; above zero
}

// IsPreparable reports whether the tree of a request is published and has no prepared one. It needs no lease.
func (v *Volume) IsPreparable(req PrepareRequest) bool {
	_, now, err := v.preparable(v.folder(req.Repo), req)
	return err == nil && now.tree != ""
}

// preparable returns the published name and tree to prepare; the latter is zero if there is nothing to prepare.
func (v *Volume) preparable(f folder, req PrepareRequest) (name string, now current, err error) {
	b, bound, err := f.readBinding()
	if err != nil || !bound {
		return "", current{}, err
	}
	name = v.names(f, b, tip{wire.Tip{Ref: req.Ref.String(), IsDefault: req.Ref == b.Default}, req.Ref})[0]
	now = v.current(f, b, name)
	replaced := req.Tree != "" && req.Tree != v.relative(f.tree(now.tree))
	if now.tree == "" || now.ref != req.Ref.String() || replaced || f.hasPrepared(now.tree) {
		return "", current{}, nil
	}
	return name, now, nil
}

// Prepare links the tree that is published for a ref into a private one, so that the next [Volume.Sync] of
// the ref only has to apply its changes. It returns false unless [Volume.IsPreparable], or if space or inodes
// are scarce. The caller holds the lease, as for Sync, and cancels ctx when somebody waits for it: Prepare
// returns within milliseconds.
func (v *Volume) Prepare(ctx context.Context, req PrepareRequest) (prepared bool, err error) {
	if err := v.checkRequest(req.Repo, req.Fence); err != nil {
		return false, err
	}
	f := v.folder(req.Repo)
	b := v.newBuilder(f, req.Fence, nil)
	defer b.close()
	prepared, err = b.prepare(ctx, req)
	if err != nil {
		_ = f.discard(f.build(req.Fence)) // deleting it would take as long as building it
		v.janitor.queue(f)
		return false, fmt.Errorf("prepare the next tree of %s: %w", req.Repo, f.explain(ctx, req.Fence, err))
	}
	return prepared, nil
}

func (b *builder) prepare(ctx context.Context, req PrepareRequest) (bool, error) {
	name, now, err := b.v.preparable(b.f, req)
	if err != nil || now.tree == "" || !b.v.hasRoomToPrepare(b.f) {
		return false, err
	}
	last := checkout.OpenTree(b.f.tree(now.tree), b.v.cfg.Links)
	if last == nil || b.f.isPurged(now.tree) {
		return false, nil
	}
	if err := b.planCopy(ctx, last); err != nil {
		return false, err
	}
	dst := b.f.build(b.fence)
	files, err := b.checkOut(ctx, dst)
	if err != nil {
		return false, err
	}
	b.v.done("linked")
	if err := b.writeGitDir(dst, files); err != nil {
		return false, err
	}
	if err := b.flushPrepared(ctx, dst, files); err != nil {
		return false, disk.Error("prepare a tree", err)
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	err = b.f.guarded(ctx, b.fence, func() error {
		if b.v.linkedTree(b.f, b.v.publishedPath(name)) != now.tree {
			return events.Errorf(events.Contention, events.ClassBusy, "%w: another tree is published", ErrStale)
		}
		if err := b.f.limitPrepared(maxPrepared - 1); err != nil {
			return err
		}
		err := os.MkdirAll(b.f.prepared(), 0o755)
		if err == nil {
			err = os.Rename(dst, b.f.next(now.tree))
		}
		return disk.Error("prepare a tree", err)
	})
	if err != nil {
		return false, err
	}
	b.f.notePrepared(now.tree, files)
	b.v.done("prepared")
	return true, nil
}

// flushPrepared makes a prepared tree durable, so that the next sync flushes only what it changes.
func (b *builder) flushPrepared(ctx context.Context, dst string, files *checkout.Files) error {
	if err := b.flushLarge(); err != nil {
		return err
	}
	g := checkout.GitDirOf(dst)
	own, err := g.Files()
	if err == nil {
		err = disk.Flush(ctx, dst, append(own, pathsIn(dst, files.Written)...))
	}
	if err != nil {
		return err
	}
	return files.MarkPrepared(g)
}

// update turns the prepared tree of the last one, if there is one, into the plan's tree at dst. It returns
// nil if the tree must be built: there is no prepared tree, or it was altered.
func (b *builder) update(ctx context.Context, dst string) (*checkout.Files, error) {
	if b.prepared == "" {
		return nil, nil
	}
	path := b.f.next(b.prepared)
	b.prepared = "" // a repeated build has none
	items, err := b.plan.Items()
	if err != nil {
		return nil, nil // the manifest is damaged
	}
	err = b.f.guarded(ctx, b.fence, func() error {
		if err := os.MkdirAll(b.f.building(), 0o755); err != nil {
			return err
		}
		return os.Rename(path, dst)
	})
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrExist):
		return nil, nil
	case err != nil:
		return nil, disk.Error("take the prepared tree", err)
	}
	b.v.done("taken")
	b.progress.begin(events.PhaseBuild, "files", int64(len(items)))
	files, err := b.plan.Update(ctx, b.objects, items, dst, b.v.cfg.Links, b.v.cfg.checkoutLimits(), b.progress.count)
	if err != nil && ctx.Err() == nil {
		return nil, nil // a new tree fails with the cause, if it is not the prepared tree
	}
	return files, err
}

// openPrepared opens the tree prepared for the next one after tree, or returns nil.
func (b *builder) openPrepared(now current) *checkout.Tree {
	next := b.f.next(now.tree)
	if ref, commit, ok := checkout.GitDirOf(next).RefAndCommit(); !ok || ref != now.ref || commit != now.commit {
		return nil
	}
	return checkout.OpenPrepared(next, b.f.tree(now.tree), b.v.cfg.Links)
}

func (f folder) hasPrepared(tree string) bool {
	_, err := os.Lstat(f.next(tree))
	return err == nil
}

const (
	maxPrepared = 8 // prepared trees of one repository; beyond that the oldest goes
	// a tree is prepared only while 1/spareShare of a quota, or of the volume's bytes and inodes, is free, or spareBytes
	// and spareInodes.
	spareShare = 10

	spareBytes  = 1 << 30
	spareInodes = 500_000
)

// hasRoomToPrepare reports whether the volume and the repository are far enough from their limits.
func (v *Volume) hasRoomToPrepare(f folder) bool {
	space, err := v.Space()
	if err != nil || space.Free < max(v.cfg.MinFreeBytes, min(space.Size/spareShare, spareBytes)) ||
		space.FreeInodes < min(space.Inodes/spareShare, spareInodes) {
		return false
	}
	if most := v.cfg.MaxVolumeBytes; most > 0 && v.Total().Bytes > most-most/spareShare {
		return false
	}
	u := readCache[Usage](f.usage())
	return u.Bytes+u.Added <= v.cfg.MaxRepoBytes-v.cfg.MaxRepoBytes/spareShare
}

// preparedTree is the tree that is ready for the next sync.
type preparedTree struct {
	of  string        // the published tree that it was linked from
	age time.Duration // since it was prepared
}

// preparedTrees lists the prepared trees, oldest first.
func (f folder) preparedTrees() (trees []preparedTree, err error) {
	entries, err := disk.ReadDir(f.prepared())
	if err != nil {
		return nil, disk.Error("list the prepared trees", err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, disk.Error("list the prepared trees", err)
		}
		trees = append(trees, preparedTree{entry.Name(), time.Since(info.ModTime())})
	}
	slices.SortFunc(trees, func(a, b preparedTree) int { return cmp.Compare(b.age, a.age) })
	return trees, nil
}

// limitPrepared discards all but the newest prepared trees. The caller holds the file lock.
func (f folder) limitPrepared(keep int) error {
	trees, err := f.preparedTrees()
	if err != nil {
		return err
	}
	for _, tree := range trees[:max(0, len(trees)-keep)] {
		if err := f.discard(f.next(tree.of)); err != nil {
			return err
		}
	}
	return nil
}

// uselessPrepared returns the paths of prepared trees that no sync will use: older than KeepPrepared, or
// their published tree has been replaced, has moved away or was marked as damaged.
func (h *holder) uselessPrepared() (paths []string, err error) {
	trees, err := h.f.preparedTrees()
	if err != nil {
		return nil, err
	}
	for _, tree := range trees {
		linked, err := h.v.isLinked(h.f, h.binding, tree.of)
		if err != nil {
			return nil, err
		}
		_, _, complete := checkout.RefAndCommit(h.f.tree(tree.of))
		if tree.age > h.v.cfg.KeepPrepared || !linked || h.binding.MovedAway.covers(tree.of) || !complete {
			paths = append(paths, h.f.next(tree.of))
		}
	}
	return paths, nil
}

const (
	folderBytes = 4096 // disk usage of a small folder on most file systems
	ownFolders  = 8    // of any tree: itself and those of its .git
)

// notePrepared adds a prepared tree to the repository's estimated growth: its folders, and copies of files
// that could not be linked.
func (f folder) notePrepared(tree string, files *checkout.Files) {
	u := readCache[Usage](f.usage())
	if u.Measured.IsZero() {
		return // the next sync measures
	}
	copies := tally{shared: map[disk.Inode]uint64{}}
	for _, path := range pathsIn(f.next(tree), files.Written) {
		if info, err := os.Lstat(path); err == nil {
			copies.add(info)
		}
	}
	u.Added += (files.Folders+ownFolders)*folderBytes + copies.bytes
	_ = f.writeUsage(u) // non-critical: the next GC measures again
}
