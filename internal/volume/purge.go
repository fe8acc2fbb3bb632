package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// Purge makes the next [Volume.Sync] of each ref fetch everything again, and deletes the old copies as soon
// as no name links to them and no reader or workspace pins them, without a grace: see "Steps of a purge" of
// the package. An earlier purge goes on, without fetching again, if its new store does not have the commit,
// which may be "". The caller holds the lease with the fence, as for Sync, and requests the syncs.
func (v *Volume) Purge(ctx context.Context, repo events.RepoPath, fence uint64, commit string) error {
	if err := v.checkRequest(repo, fence); err != nil {
		return err
	}
	f := v.folder(repo)
	if err := v.purge(ctx, f, SyncRequest{Repo: repo, Fence: fence}, commit); err != nil {
		return fmt.Errorf("purge %s: %w", repo, f.explain(ctx, fence, err))
	}
	return nil
}

func (v *Volume) purge(ctx context.Context, f folder, req SyncRequest, commit string) error {
	b, bound, err := f.readBinding()
	switch {
	case err != nil:
		return err
	case !bound && b.MovedAway != nil:
		return conflict("it has moved to %s: purge that; what is left here goes with its grace", b.MovedAway.To)
	case !bound:
		return notHere(req.Repo)
	}
	if err := f.record(ctx, req.Fence); err != nil {
		return err
	}
	goesOn, err := f.isPurgedOf(b, commit)
	if err != nil {
		return err
	}
	if !goesOn {
		if err := f.guarded(ctx, req.Fence, func() error { return f.beginPurge(b) }); err != nil {
			return err
		}
	}
	v.done("purge begun")
	s := &holder{v: v, f: f, fence: req.Fence, binding: b}
	if err := s.tidyNow(ctx); err != nil {
		return err
	}
	f.emptyTrash()
	return nil
}

// purgeMark is an empty file in a store that is to be deleted with the trees that use it.
const purgeMark = "lockstep-purged"

// purgeMarks returns the paths of the marks of the purged stores.
func (f folder) purgeMarks() ([]string, error) {
	marks, err := disk.Glob(f.stores(), "*/"+purgeMark)
	return marks, disk.Error("list the purged stores", err)
}

// isPurged reports whether the store that a tree uses is to be deleted.
func (f folder) isPurged(tree string) bool {
	dir, err := checkout.GitDirOf(f.tree(tree)).Store()
	return err == nil && store{dir}.isPurged()
}

// isPurgedOf reports whether a purge has begun whose new store does not have the commit.
func (f folder) isPurgedOf(b binding, commit string) (purged bool, err error) {
	marks, err := f.purgeMarks()
	if err != nil || len(marks) == 0 || commit == "" {
		return false, err
	}
	current, err := f.currentStore(b.MovedAway)
	if err != nil || !current.isBegun() {
		return false, err
	}
	has, err := holds(object.Open(current.dir), commit)
	return !has, err
}

func (s store) isPurged() bool {
	_, err := os.Lstat(filepath.Join(s.dir, purgeMark))
	return err == nil && s.dir != ""
}

// beginPurge makes an empty store the current one before it marks the others. The stores of submodules go at
// once, as one may have been fetched upon another with the secret. The caller holds the file lock.
func (f folder) beginPurge(b binding) error {
	generations, err := f.generations()
	if err != nil {
		return err
	}
	old, err := f.currentStore(b.MovedAway)
	if err != nil {
		return err
	}
	if format, ok := object.FormatOf(old.dir); ok {
		if err := f.beginNext(b.MovedAway, old.depth(), format); err != nil {
			return err
		}
	}
	for _, n := range generations {
		if n <= b.MovedAway.lastStore() {
			continue
		}
		if err := disk.Replace(filepath.Join(f.generation(n).dir, purgeMark), nil); err != nil {
			return disk.Error("mark the store", err)
		}
	}
	return f.discardAt([]string{f.prepared(), f.parts(), f.tidied()})
}

// replacedTrees returns the trees that a purge deletes now: those of purged stores that no name needs.
func (f folder) replacedTrees(links map[string]string) (trees []string, err error) {
	linked := linkedTrees(links)
	entries, err := disk.ReadDir(f.trees())
	for _, tree := range entries {
		if !linked[tree.Name()] && f.isPurged(tree.Name()) {
			trees = append(trees, tree.Name())
		}
	}
	return trees, disk.Error("list the trees", err)
}

// discardReplaced discards the trees that a purge deletes now. It returns whether pins keep any. The caller
// holds the file lock.
func (h *holder) discardReplaced(links map[string]string) (pinned bool, err error) {
	marks, err := h.f.purgeMarks()
	if err != nil || len(marks) == 0 {
		return false, err
	}
	trees, err := h.f.replacedTrees(links)
	if err != nil {
		return false, err
	}
	for _, tree := range trees {
		gone := true
		if h.endPins {
			err = h.f.discard(h.f.tree(tree))
		} else {
			gone, err = h.f.discardUnpinned(tree)
		}
		if err != nil {
			return false, err
		}
		pinned = pinned || !gone
	}
	return pinned, nil
}

// PurgeLeft is what is left of the copies that a purge deletes. Paths are relative to the root.
type PurgeLeft struct {
	Names  []string // published from an old tree, as their ref was not synced yet
	Pinned []string // replaced trees; after [Volume.GC], those that readers or workspaces pin
	Paths  []string // old stores, and trash
}

// PurgeLeft returns what is left of the copies that a purge deletes; nothing once [Volume.GC] has completed
// it. It needs no lease.
func (v *Volume) PurgeLeft(repo events.RepoPath) (left PurgeLeft, err error) {
	f := v.folder(repo)
	b, _, err := f.readBinding()
	if err != nil {
		return left, err
	}
	for _, pattern := range []string{"stores/*/" + purgeMark, "trash/*"} {
		paths, err := disk.Glob(f.dir, pattern)
		if err != nil {
			return left, disk.Error("look for what a purge has left", err)
		}
		for _, path := range paths {
			left.Paths = append(left.Paths, v.relative(path))
		}
	}
	links, err := v.withSubtrees(v.links, f, b)
	if err != nil {
		return left, err
	}
	for path, tree := range links {
		if f.isPurged(tree) && !b.MovedAway.covers(tree) {
			left.Names = append(left.Names, v.relative(path))
		}
	}
	slices.Sort(left.Names)
	trees, err := f.replacedTrees(links)
	for _, tree := range trees {
		left.Pinned = append(left.Pinned, v.relative(f.tree(tree)))
	}
	return left, err
}

// HasCommit reports whether a store of the repository or of one of its submodules has a commit.
func (v *Volume) HasCommit(repo events.RepoPath, commit string) (bool, error) {
	objects, err := v.folder(repo).openStores()
	if err != nil {
		return false, err
	}
	return holds(objects, commit)
}

// holds reports whether stores have an object, and closes them.
func holds(objects *object.Store, id string) (has bool, err error) {
	defer object.RecoverCorrupt(&err)
	defer objects.Close()
	return objects.Has(object.ParseID(id))
}
