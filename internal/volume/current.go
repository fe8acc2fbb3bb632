package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// changesSince lists the changes since the commit base, which may be in an older store generation.
func (s *syncer) changesSince(ctx context.Context, base string) (checkout.Changes, error) {
	if err := s.takeSlot(ctx); err != nil {
		return checkout.Changes{}, err
	}
	s.progress.begin(events.PhaseCompare, "", 0)
	generations, err := s.f.generations()
	if err != nil {
		return checkout.Changes{}, err
	}
	dirs := []string{s.store.dir}
	for _, n := range slices.Backward(generations) {
		if older := s.f.generation(n); older != s.store {
			dirs = append(dirs, older.dir)
		}
	}
	all := object.Open(append(dirs, s.partDirs...)...)
	defer all.Close()
	return s.plan.ChangesSince(ctx, all, base, s.v.cfg.checkoutLimits())
}

// isDoubtful reports whether the reader of a base may have files that its changes do not list: a tree of its commit was
// damaged, or the reader may have later commits, whose files have been changed back since. If the only one is published
// now, as after the crash of a worker, nothing has been changed back, and a change that is settled again has the same
// result. If nothing is published, the volume has been replaced, which alone leaves no doubt.
func (s *syncer) isDoubtful(t *target, base Base) bool {
	after := s.plan.Commit.String()
	hasLater := base.Since != after && (t.was.tree != "" || base.Since != "") || base.Commit == after
	return base.Uncertain && hasLater || s.wasDamaged(base.Commit)
}

// wasDamaged reports whether a tree of the ref at this commit is marked as damaged, so that readers may have
// read wrong files. It is unknown which apps were notified, so all are notified until that tree's grace has
// ended.
func (s *syncer) wasDamaged(commit string) bool {
	if !object.IsID(commit) {
		return false
	}
	if _, err := os.Lstat(s.f.damaged()); err != nil {
		return false
	}
	trees, err := disk.ReadDir(s.f.trees())
	if err != nil {
		return false
	}
	return slices.ContainsFunc(trees, func(tree os.DirEntry) bool {
		if _, rest, _ := strings.Cut(tree.Name(), "-"); !strings.HasPrefix(rest, commit[:12]) {
			return false
		}
		g := checkout.GitDirOf(s.f.tree(tree.Name()))
		ref, err := builtFor(g)
		return err == nil && ref == s.ref && g.IsMarked()
	})
}

// isPublished reports whether one tree of the ref's commit, with the requested history, LFS files and
// submodules, is published under every name. It returns false for the zero commit, and for a tree that a
// purge replaces. Until the submodules are known, parts is nil.
func (s *syncer) isPublished(t *target, commit object.ID, parts *checkout.Parts) bool {
	if t.now.tree == "" || t.now.ref != t.Ref.String() || t.now.commit != commit.String() || !s.isDeepEnough(t) ||
		checkout.GitDirOf(s.f.tree(t.now.tree)).Large() != s.req.LFS.String() ||
		!s.hasParts(s.f.tree(t.now.tree), parts) || s.f.isPurged(t.now.tree) {
		return false
	}
	for _, name := range t.names {
		if s.v.linkedTree(s.f, s.v.publishedPath(name)) != t.now.tree {
			return false
		}
	}
	return true
}

// isDeepEnough reports whether the published tree has the requested history.
func (s *syncer) isDeepEnough(t *target) bool {
	return events.Depth(1).Covers(s.req.Depth) || depthOf(checkout.GitDirOf(s.f.tree(t.now.tree))).Covers(s.req.Depth)
}

// current is the complete tree that a name is published for; zero if there is none.
type current struct{ tree, ref, commit string }

// current ignores the trees of a repository that has moved away.
func (v *Volume) current(f folder, b binding, name string) current {
	tree := v.linkedTree(f, v.publishedPath(name))
	if tree == "" || b.MovedAway.covers(tree) {
		return current{}
	}
	ref, commit, ok := checkout.RefAndCommit(f.tree(tree))
	if !ok {
		return current{}
	}
	return current{tree, ref, commit}
}

// relative returns a path on the volume relative to its root.
func (v *Volume) relative(path string) string {
	rel, err := filepath.Rel(v.root, path)
	if err != nil {
		return path // impossible: both are absolute
	}
	return filepath.ToSlash(rel)
}

// explain returns the root cause of a failure: a cancelled context, a newer holder that deleted our work, or
// err itself.
func (f folder) explain(ctx context.Context, fence uint64, err error) error {
	cause := context.Cause(ctx)
	switch {
	case cause != nil && (!errors.Is(err, cause) || events.ClassOf(err) != events.ClassOf(cause)):
		return cause // err is only its consequence
	case cause != nil || errors.Is(err, ErrStale):
		return err
	}
	switch events.ClassOf(err) {
	case events.ClassVolume, events.ClassCorrupt:
		if stale := f.checkFence(fence); errors.Is(stale, ErrStale) {
			return stale
		}
	}
	return err
}

// damaged exists while a tree is marked as damaged, so that a sync reads all trees only then.
func (f folder) damaged() string { return filepath.Join(f.dir, "damaged") }

// markDamaged marks the tree at a path as damaged. The caller holds the file lock.
func (f folder) markDamaged(tree string) error {
	if err := os.WriteFile(f.damaged(), nil, 0o644); err != nil {
		return disk.Error("mark a damaged tree", err)
	}
	if err := disk.SyncDir(f.dir); err != nil {
		return disk.Error("mark a damaged tree", err)
	}
	return disk.Error("mark a damaged tree", checkout.GitDirOf(tree).Unmake())
}

// forgetDamaged removes the file once no tree is marked. The caller holds the file lock.
func (f folder) forgetDamaged() error {
	if _, err := os.Lstat(f.damaged()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	trees, err := disk.ReadDir(f.trees())
	if err != nil {
		return disk.Error("list the trees", err)
	}
	for _, tree := range trees {
		if checkout.GitDirOf(f.tree(tree.Name())).IsMarked() {
			return nil
		}
	}
	return disk.Error("forget damaged trees", os.Remove(f.damaged()))
}
