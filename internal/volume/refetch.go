package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/object"
)

// No object is ever deleted from a store: a tree, a workspace or a fetch may use any of them. Instead, everything is
// fetched again into the next store, and this one goes with its last tree: if it has many packs or loose objects, which
// are larger and slower to read than one pack, or if its refs need less than half of its objects. That is reconsidered
// only after the store has doubled, so that failed attempts stay cheap.
const (
	minLoose  = 1 << 20 // bytes of objects that may always be unneeded
	maxLoose  = 2 << 20 // bytes of loose objects that are always acceptable; beyond that, half as much as the packs have
	maxPacks  = 32
	pruneStep = 256 // LFS objects deleted per file lock
)

// refetchMark is a file in a store that requests a full fetch into the next store.
const refetchMark = "fetch-afresh"

func (s store) needsRefetch() bool {
	_, err := os.Lstat(filepath.Join(s.dir, refetchMark))
	return err == nil
}

// requestRefetch marks the store to be replaced by a full fetch.
func (s store) requestRefetch() error {
	return os.WriteFile(filepath.Join(s.dir, refetchMark), nil, 0o644)
}

// storeSize is the size of a store.
type storeSize struct {
	packed, largest int64 // bytes on disk of all packs, and of the largest one
	packs           int
	loose, objects  int64 // bytes on disk of loose objects, and their number
}

// sampled is how many of the 256 folders of loose objects are read to estimate them; "git gc --auto" reads one.
const sampled = 16

// size returns the size of the store. Loose objects are counted in the given number of their 256 folders, and estimated
// from that.
func (s store) size(folders int) (size storeSize, err error) {
	names, err := disk.ReadDir(filepath.Join(s.dir, "objects", "pack"))
	if err != nil {
		return storeSize{}, err
	}
	for i, name := range names {
		if filepath.Ext(name.Name()) != ".pack" {
			continue
		}
		bytes := space(names[i : i+1])
		size.packs++
		size.packed += bytes
		size.largest = max(size.largest, bytes)
	}
	for i := range folders {
		step := 256 / folders
		loose, err := disk.ReadDir(filepath.Join(s.dir, "objects", fmt.Sprintf("%02x", i*step)))
		if err != nil {
			return storeSize{}, err
		}
		size.loose += space(loose) * int64(step)
		size.objects += int64(len(loose) * step)
	}
	return size, nil
}

// isFragmented reports whether the store has too many packs or loose objects.
func (z storeSize) isFragmented() bool {
	return z.packs > maxPacks || z.loose > max(z.packed/2, maxLoose)
}

// sizeName is a file with the size of a store when a full fetch was last considered.
const sizeName = "lockstep-size"

// hasGrown reports whether a full fetch is to be considered. Counting loose objects takes the longer the more there
// are, so a sync counts them only if it has looked at all trees, too.
func (s store) hasGrown(countLoose bool) bool {
	folders := 0
	if countLoose {
		folders = sampled
	}
	now, err := s.size(folders)
	if err != nil {
		return false
	}
	last := storeSize{}
	if content, err := os.ReadFile(filepath.Join(s.dir, sizeName)); err == nil {
		_, _ = fmt.Sscan(string(content), &last.loose, &last.packed, &last.packs)
	}
	return now.packed > 2*max(last.packed, now.largest)+minLoose ||
		now.isFragmented() && (now.packs > 2*last.packs || now.loose > 2*last.loose)
}

// prune deletes what no tree needs of LFS and submodules, and requests a full fetch if the store should be replaced.
func (h *holder) prune(ctx context.Context) error {
	if err := h.pruneLFS(ctx); err != nil {
		return err
	}
	if err := h.pruneParts(ctx); err != nil {
		return err
	}
	current, err := h.f.currentStore(h.binding.MovedAway)
	if err != nil || !current.isBegun() {
		return err
	}
	size, err := current.size(256)
	if err != nil {
		return disk.Error("measure the store", err)
	}
	wasteful := size.isFragmented()
	if !wasteful && size.packed+size.loose > minLoose {
		if wasteful, err = current.isWasteful(ctx, size); err != nil {
			return err
		}
	}
	return h.f.guarded(ctx, h.fence, func() error {
		if wasteful {
			if err := current.requestRefetch(); err != nil {
				return disk.Error("request a full fetch", err)
			}
		}
		content := fmt.Appendln(nil, size.loose, size.packed, size.packs)
		return disk.Error("note the store's size", os.WriteFile(filepath.Join(current.dir, sizeName), content, 0o644))
	})
}

// isWasteful reports whether the store's refs need less than half of its objects.
func (s store) isWasteful(ctx context.Context, size storeSize) (bool, error) {
	indexes, err := disk.Glob(filepath.Join(s.dir, "objects", "pack"), "*.idx")
	if err != nil {
		return false, disk.Error("list the packs", err)
	}
	all := size.objects
	for _, index := range indexes {
		count, err := object.CountIndexed(index)
		if err != nil {
			return false, err
		}
		all += count
	}
	needed, err := s.countNeeded(ctx)
	if events.ClassOf(err) == events.ClassCorrupt && ctx.Err() == nil {
		return true, nil // it lacks some of them
	}
	return all > 2*needed, err
}

// countNeeded counts the objects that the store's refs need.
func (s store) countNeeded(ctx context.Context) (needed int64, err error) {
	defer object.RecoverCorrupt(&err)
	refs, err := s.refs()
	if err != nil {
		return 0, err
	}
	objects := object.Open(s.dir)
	defer objects.Close()
	seen, cut := map[object.ID]bool{}, setOf(s.shallow())
	err = walkHistory(ctx, distinct(refs), seen, func(h object.ID) ([]object.ID, error) {
		commit, err := objects.Commit(h)
		if err != nil {
			return nil, object.Corruptf("count the store's objects: %w", err)
		}
		if err := addObjects(objects, commit.TreeHash, seen); err != nil || cut[h] {
			return nil, err
		}
		return commit.ParentHashes, nil
	})
	return int64(len(seen)), err
}

// addObjects adds a folder and everything below it.
func addObjects(objects *object.Store, folder object.ID, seen map[object.ID]bool) error {
	if seen[folder] {
		return nil
	}
	seen[folder] = true
	entries, err := objects.Tree(folder)
	if err != nil {
		return object.Corruptf("count the store's objects: %w", err)
	}
	for _, e := range entries {
		switch e.Mode {
		case filemode.Submodule:
		case filemode.Dir:
			if err := addObjects(objects, e.Hash, seen); err != nil {
				return err
			}
		default:
			seen[e.Hash] = true
		}
	}
	return nil
}
