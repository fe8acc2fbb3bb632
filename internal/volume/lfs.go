package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/object"
)

// lfs is the folder of the repository's LFS objects.
func (f folder) lfs() string { return filepath.Join(f.dir, "lfs") }

// largeFiles has the LFS files of one tree and of its submodules.
type largeFiles struct {
	files *lfs.Forest
	store *lfs.Store
	// for the tree at a folder; nil if objects cannot be downloaded
	dial func(ctx context.Context, folder string) (*lfs.Client, error)

	mu   sync.Mutex // held while an object is made available
	slot *slot      // of the job; left while an object is downloaded

	usedMu sync.Mutex
	used   []string // paths of files in the store that the new tree may link: an earlier sync may not have flushed them
}

// useLarge opens the LFS files of the plan's tree. Without a selection it does nothing, unless the last tree
// has LFS files. The returned value is nil if the tree has none.
func (b *builder) useLarge(ctx context.Context, selection lfs.Selection) (*largeFiles, error) {
	last := b.last.Large()
	if len(selection) == 0 && last == "" {
		return nil, nil
	}
	if err := b.forgetUnreadable(ctx); err != nil {
		return nil, err
	}
	b.largeObjects.Close()
	b.largeObjects = object.Open(append([]string{b.store.dir}, b.partDirs...)...)
	files, ok := b.forest(b.plan.Tree(), b.plan.Parts(), selection)
	if !ok {
		return nil, object.Corruptf("the commit of a submodule is missing")
	}
	converted := b.converted(files, selection, last)
	if len(selection) == 0 {
		b.plan.SetLarge(nil, "", converted)
		return nil, nil
	}
	l := &largeFiles{files: files, store: &lfs.Store{Dir: b.f.lfs(), Fence: b.fence}, slot: &b.slot}
	b.plan.SetLarge(l, selection.String(), converted)
	return l, nil
}

// forgetUnreadable replaces the plan by one without the last tree if that tree's manifest is damaged. A later
// replacement would lack what is set of LFS and of submodules.
func (b *builder) forgetUnreadable(ctx context.Context) (err error) {
	if b.last == nil || b.last.IsReadable() {
		return nil
	}
	b.last, b.prepared = nil, ""
	b.plan, err = checkout.NewPlan(ctx, b.objects, b.plan.Commit, nil, b.v.cfg.MaxTreeFiles)
	return err
}

// converted returns a function that reports whether a file is now in LFS, or selected, and was not in the
// last tree, or the reverse. It returns nil if that is so for no file.
func (b *builder) converted(files *lfs.Forest, selection lfs.Selection, last string) func(path string) bool {
	if b.last == nil {
		return nil
	}
	all := func(string) bool { return true }
	tree, changed, known := b.plan.LastTree(b.largeObjects, lfs.Decides)
	if !known {
		return all
	}
	if !changed && !b.plan.PartsDiffer(lfs.MayDecide) && last == selection.String() {
		return nil
	}
	was, err := lfs.ParseSelection(last)
	if err != nil {
		return all
	}
	before, ok := b.forest(tree, b.last.Parts(), was)
	if !ok {
		return all
	}
	return func(path string) bool {
		then, err := before.Selects(path)
		now, nowErr := files.Selects(path)
		return err != nil || nowErr != nil || then != now
	}
}

// forest returns the LFS files of a tree and its submodules. It returns false if the commit of a submodule
// cannot be read.
func (b *builder) forest(tree object.ID, parts checkout.Parts, selection lfs.Selection) (*lfs.Forest, bool) {
	trees := map[string]object.ID{"": tree}
	for _, part := range parts.Filled() {
		tree, ok := b.largeObjects.TreeOf(part.Commit)
		if !ok {
			return nil, false
		}
		trees[part.Path] = tree
	}
	return lfs.NewForest(b.largeObjects, trees, selection), true
}

// Find implements [checkout.Large]. It downloads an object that is damaged or has gone missing in the store.
func (l *largeFiles) Find(
	ctx context.Context, path string, blob object.ID, executable bool,
) (*checkout.LargeFile, error) {
	p, ok, err := l.files.Pointer(path, blob)
	if err != nil || !ok || p.Size == 0 {
		if ok && err == nil {
			return &checkout.LargeFile{}, nil
		}
		return nil, err
	}
	has, err := l.store.Has(ctx, p)
	if err != nil {
		return nil, err
	}
	if !has || executable {
		l.mu.Lock()
		defer l.mu.Unlock()
	}
	if !has {
		if err := l.download(ctx, path, p); err != nil {
			return nil, err
		}
	}
	file, err := l.store.File(ctx, p, executable)
	l.usedMu.Lock()
	defer l.usedMu.Unlock()
	l.used = append(l.used, file)
	return &checkout.LargeFile{Path: file, Size: p.Size}, err
}

func (l *largeFiles) download(ctx context.Context, path string, p lfs.Pointer) error {
	if has, err := l.store.Has(ctx, p); err != nil || has { // another goroutine has it now
		return err
	}
	if l.dial == nil {
		return object.Corruptf("the LFS object of %q is missing or damaged", path)
	}
	l.slot.leave() // other goroutines of the build continue, as far as they need no download
	client, err := l.dial(ctx, l.files.FolderOf(path))
	if err != nil {
		return err
	}
	if _, err := client.Download(ctx, []lfs.Object{{Pointer: p, Path: path}}); err != nil {
		return err
	}
	return l.slot.take(ctx, nil) // the progress is that of the build
}

// flushLarge makes the objects durable that the new tree links, also those of earlier syncs, which may have
// ended before they flushed them.
func (b *builder) flushLarge() error {
	l := b.large
	if l == nil || len(l.used) == 0 {
		return nil
	}
	slices.Sort(l.used)
	used := slices.Compact(l.used)
	l.used = nil
	return disk.Error("store LFS objects", disk.FlushChanged(used, nil))
}

func sizeOf(paths []string) (bytes int64) {
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil {
			bytes += info.Size()
		}
	}
	return bytes
}

// keepLarge prepares a copy of a tree with the same LFS files, none of which is downloaded.
func (b *builder) keepLarge(ctx context.Context, tree string) (err error) {
	b.large, err = b.useLarge(ctx, lfsOf(tree))
	return err
}

// lfsOf returns the LFS selection of a tree, or nil if it cannot be read.
func lfsOf(tree string) lfs.Selection {
	selection, err := lfs.ParseSelection(checkout.GitDirOf(tree).Large())
	if err != nil {
		return nil
	}
	return selection
}

// pruneLFS deletes the LFS objects that no tree links, and downloads that were given up.
func (h *holder) pruneLFS(ctx context.Context) error {
	store := &lfs.Store{Dir: h.f.lfs(), Fence: h.fence}
	if _, err := os.Lstat(store.Dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var unused []string
	if err := store.Unused(ctx, func(path string) error { unused = append(unused, path); return nil }); err != nil {
		return err
	}
	for step := range slices.Chunk(unused, pruneStep) {
		err := h.f.guarded(ctx, h.fence, func() error {
			for _, path := range step {
				if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
					return disk.Error("delete an LFS object", err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return h.f.guarded(ctx, h.fence, store.Clear)
}
