package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// builder builds the tree of a commit: for a sync, ahead of one, or when a repository moves.
type builder struct {
	holder
	slot     slot // taken before local work, left before the remote's answer is awaited
	progress *reporter
	meter    meter

	ref     events.Ref
	former  string        // the tree that is published for the ref, "" for none
	store   store         // where the commit's objects are
	objects *object.Store // open on it
	plan    *checkout.Plan
	history checkout.History // of the plan's commit

	last     *checkout.Tree // to share files with; nil for none
	prepared string         // last is the tree prepared from this published one; "" for none

	parts        checkout.Parts // submodules of the plan's tree
	partDirs     []string       // their stores, and those of the last tree
	large        *largeFiles    // LFS files of the plan's tree; nil for none
	largeObjects *object.Store  // the store, opened again for large
}

func (v *Volume) newBuilder(f folder, fence uint64, progress func(events.Progress)) builder {
	return builder{
		holder: holder{v: v, f: f, fence: fence}, slot: slot{slots: v.cfg.Slots}, progress: newReporter(progress),
	}
}

// takeSlot takes the slot for local work, unless the builder has it.
func (b *builder) takeSlot(ctx context.Context) error { return b.slot.take(ctx, b.progress) }

// use opens a store to build trees from.
func (b *builder) use(from store) {
	b.objects.Close()
	b.store, b.objects = from, object.Open(from.dir)
}

func (b *builder) close() {
	b.slot.leave()
	b.objects.Close()
	b.largeObjects.Close()
}

// planCopy plans a copy of a published tree from its store, without contacting any remote.
func (b *builder) planCopy(ctx context.Context, last *checkout.Tree) error {
	dir, err := checkout.GitDirOf(last.Path()).Store()
	if err != nil {
		return disk.Error("read a published tree", err)
	}
	return b.planCopyFrom(ctx, last.Path(), last, store{dir})
}

// planCopyFrom plans a copy of the tree at a path from a store with its objects. last is the tree, or nil if its files
// cannot be used.
func (b *builder) planCopyFrom(ctx context.Context, tree string, last *checkout.Tree, in store) (err error) {
	g := checkout.GitDirOf(tree)
	if b.ref, err = builtFor(g); err != nil {
		return disk.Error("read a published tree", err)
	}
	b.use(in)
	b.former = filepath.Base(tree)
	b.last, b.history = last, checkout.History{Depth: g.Depth(), Shallow: object.ReadShallow(g.Dir)}
	b.plan, err = checkout.NewPlan(ctx, b.objects, object.ParseID(g.BuiltFrom()), last, b.v.cfg.MaxTreeFiles)
	if err != nil {
		return err
	}
	if err := b.keepParts(ctx, tree); err != nil {
		return err
	}
	return b.keepLarge(ctx, tree)
}

// build makes the tree with its .git and index, gives it its final name, which it returns, and flushes it to disk.
func (b *builder) build(ctx context.Context) (tree string, err error) {
	if err := b.takeSlot(ctx); err != nil {
		return "", err
	}
	b.progress.begin(events.PhaseBuild, "files", 0)
	dst := b.f.build(b.fence)
	files, err := b.update(ctx, dst)
	if files == nil && err == nil {
		files, err = b.checkOut(ctx, dst)
	}
	if err != nil {
		return "", err
	}
	b.v.done("checked out")
	if err := b.writeGitDir(dst, files); err != nil {
		return "", err
	}
	b.v.done("indexed")
	b.progress.begin(events.PhasePublish, "", 0)
	b.meter.countBuilt(dst, files)
	path, err := unusedPath(b.f.tree(fmt.Sprintf("%d-%.12s", b.fence, b.plan.Commit)))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(b.f.trees(), 0o755); err != nil {
		return "", disk.Error("build the tree", err)
	}
	if err := os.Rename(dst, path); err != nil {
		return "", disk.Error("build the tree", err)
	}
	if err := errors.Join(b.flushLarge(), b.f.flushTree(ctx, path, files)); err != nil {
		_ = os.RemoveAll(path)
		return "", disk.Error("build the tree", err)
	}
	return filepath.Base(path), nil
}

// pathsIn returns the full paths of files in a tree.
func pathsIn(tree string, files []string) []string {
	paths := make([]string, len(files))
	for i, path := range files {
		paths[i] = filepath.Join(tree, filepath.FromSlash(path))
	}
	return paths
}

// checkOut checks the plan out into dst, which it empties first.
func (b *builder) checkOut(ctx context.Context, dst string) (*checkout.Files, error) {
	items, err := b.plan.Items()
	if err != nil { // the last tree is unusable
		if b.plan, err = checkout.NewPlan(ctx, b.objects, b.plan.Commit, nil, b.v.cfg.MaxTreeFiles); err != nil {
			return nil, err
		}
		if items, err = b.plan.Items(); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(b.f.discard(dst), os.MkdirAll(dst, 0o755)); err != nil {
		return nil, disk.Error("build the tree", err)
	}
	b.progress.begin(events.PhaseBuild, "files", int64(len(items)))
	return b.plan.Build(ctx, b.objects, items, dst, b.v.cfg.Links, b.v.cfg.checkoutLimits(), b.progress.count)
}

// writeGitDir writes the tree's .git.
func (b *builder) writeGitDir(dst string, files *checkout.Files) error {
	place := filepath.Join(checkout.GitDirOf(b.f.tree("any")).Dir, "objects") // not that of dst, which may be deeper
	alternates, err := filepath.Rel(place, filepath.Join(b.store.dir, "objects"))
	if err == nil {
		err = files.WriteGit(dst, b.ref.String(), b.plan.Commit, b.former, b.history, b.v.cfg.Links, alternates)
	}
	return disk.Error("write the tree's .git", err)
}

// holder is the holder of the lease on a repository, with what it knows of the repository's folder. Its
// methods clean up: they retire and delete what nobody needs any more.
type holder struct {
	v       *Volume
	f       folder
	fence   uint64
	binding binding
	horizon horizon // see queryHorizon
	tidied  bool    // tidy has looked at all trees
	endPins bool    // see GCRequest
}

// flushTree makes the tree at path durable, with its name and the fence that this contains. Nothing names it yet.
func (f folder) flushTree(ctx context.Context, path string, files *checkout.Files) error {
	written := append(pathsIn(path, files.Written), f.fence())
	above := []string{f.trees(), f.dir}
	if files.Changed != nil {
		return disk.FlushChanged(append(written, pathsIn(path, files.GitWritten)...),
			append(above, pathsIn(path, files.Changed)...))
	}
	own, err := checkout.GitDirOf(path).Files()
	if err == nil {
		err = disk.Flush(ctx, path, append(written, own...))
	}
	return errors.Join(err, disk.FlushChanged(nil, above))
}

// flushStore makes a new store and the folders above it durable.
func (v *Volume) flushStore(in store) error {
	objects := filepath.Join(in.dir, "objects")
	folders := []string{objects, filepath.Join(objects, "pack"), filepath.Join(objects, "info"),
		filepath.Join(in.dir, "refs")}
	for dir := in.dir; len(dir) >= len(v.root); dir = filepath.Dir(dir) {
		folders = append(folders, dir)
	}
	files := []string{filepath.Join(in.dir, "config"), filepath.Join(in.dir, "HEAD")}
	return disk.Error("create the store", disk.FlushChanged(files, folders))
}
