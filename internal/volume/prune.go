package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// A small fetch leaves loose objects in the store, a larger one a pack. Loose objects that no tree needs are
// pruned once the loose ones take half as much space as the packs. The store is fetched in full again if the
// refs alone need too many loose objects, if there are too many packs, or if more than half of the packed
// objects are unneeded: one pack is smaller and faster to read. Both are reconsidered only after the store
// has doubled, so that failed attempts stay cheap.
const (
	minLoose  = 1 << 20 // bytes of loose objects that are always acceptable
	maxPacks  = 32
	pruneStep = 256 // objects deleted per file lock
)

// prune deletes the loose objects that neither the store's refs nor any tree needs, unless a workspace may
// use them. It may also delete objects that a stale holder just added, which cannot publish them.
func (h *holder) prune(ctx context.Context) error {
	if err := h.pruneLFS(ctx); err != nil {
		return err
	}
	if err := h.pruneParts(ctx); err != nil {
		return err
	}
	current, err := h.f.currentStore(h.binding.MovedAway)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(current.dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	needed, err := h.f.needed(ctx, current)
	if err != nil {
		return err
	}
	loose, err := current.sortLoose(needed)
	if err != nil {
		return disk.Error("prune the store", err)
	}
	inUse := false
	for step := range slices.Chunk(loose.unneeded, pruneStep) {
		err := h.f.guarded(ctx, h.fence, func() error {
			release, ok, err := claimObjects(current)
			if err != nil || !ok {
				inUse = true
				return disk.Error("prune the store", err)
			}
			defer release()
			for _, path := range step {
				if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
					return disk.Error("prune the store", err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if inUse {
		loose.kept += loose.spare // or each sync would try again
	}
	return h.f.guarded(ctx, h.fence, func() error {
		return disk.Error("prune the store", current.notePruned(loose, len(needed)-loose.count))
	})
}

// notePruned requests a full fetch if the store needs one, and records the store's state. neededPacked is the
// number of packed objects that are needed. The caller holds the file lock.
func (s store) notePruned(loose looseObjects, neededPacked int) error {
	packs, err := s.packs()
	if err != nil {
		return err
	}
	inPacks := int64(0) // objects
	for _, pack := range packs {
		base := strings.TrimSuffix(pack.Name(), ".pack")
		count, err := object.CountIndexed(filepath.Join(s.dir, "objects", "pack", base+".idx"))
		if err != nil {
			return err
		}
		inPacks += count
	}
	bytes := space(packs)
	wasted := bytes > minLoose && inPacks > 2*int64(neededPacked)
	if wasted || loose.byRefs > looseLimit(packs)/2 || len(packs) > maxPacks {
		if err := s.requestRefetch(); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(s.dir, prunedName), fmt.Appendln(nil, loose.kept, bytes, len(packs)), 0o644)
}

// requestRefetch marks the store to be replaced by a full fetch.
func (s store) requestRefetch() error {
	return os.WriteFile(filepath.Join(s.dir, refetchMark), nil, 0o644)
}

// looseObjects describes the loose objects of a store.
type looseObjects struct {
	unneeded     []string // paths
	spare        int64    // bytes on disk of the unneeded ones
	kept, byRefs int64    // bytes on disk of the needed ones, and of those that the refs need
	count        int      // number of needed ones
}

func (s store) sortLoose(needed map[object.ID]need) (loose looseObjects, err error) {
	objects := filepath.Join(s.dir, "objects")
	groups, err := disk.ReadDir(objects)
	if err != nil {
		return loose, err
	}
	for _, group := range groups {
		if len(group.Name()) != 2 {
			continue
		}
		names, err := disk.ReadDir(filepath.Join(objects, group.Name()))
		if err != nil {
			return loose, err
		}
		for i, name := range names {
			id := object.ParseID(group.Name() + name.Name())
			if id.IsZero() {
				continue
			}
			bytes := space(names[i : i+1])
			switch needed[id] {
			case byNone:
				loose.unneeded = append(loose.unneeded, filepath.Join(objects, group.Name(), name.Name()))
				loose.spare += bytes
				continue
			case byRefs:
				loose.byRefs += bytes
			}
			loose.kept += bytes
			loose.count++
		}
	}
	return loose, nil
}

// need is the reason for keeping an object.
type need int

const (
	byNone need = iota
	byTrees
	byRefs
)

// needed returns the present objects that the store's refs and the repository's trees need.
func (f folder) needed(ctx context.Context, s store) (needed map[object.ID]need, err error) {
	defer object.RecoverCorrupt(&err)
	refs, err := s.refs()
	if err != nil {
		return nil, err
	}
	trees, err := disk.ReadDir(f.trees())
	if err != nil {
		return nil, disk.Error("list the trees", err)
	}
	m := &marker{ctx: ctx, objects: object.Open(s.dir), parents: map[object.ID][]object.ID{}, needed: map[object.ID]need{}}
	defer m.objects.Close()
	if err := m.mark(distinct(refs), s.shallow(), byRefs); err != nil {
		return nil, err
	}
	// A tree that was built with less history does not limit what others need.
	for _, tips := range f.tipsOf(trees) {
		if err := m.mark(tips.commits, tips.shallow, byTrees); err != nil {
			return nil, err
		}
	}
	return m.needed, nil
}

// tips are commits with the same shallow commits.
type tips struct{ commits, shallow []object.ID }

// tipsOf groups the commits of the trees by their shallow commits, so that each history is followed once.
func (f folder) tipsOf(trees []os.DirEntry) map[string]tips {
	groups := map[string]tips{}
	for _, tree := range trees {
		if _, commit, ok := checkout.RefAndCommit(f.tree(tree.Name())); ok {
			shallow := object.ReadShallow(checkout.GitDirOf(f.tree(tree.Name())).Dir)
			key := string(object.EncodeShallow(shallow))
			groups[key] = tips{append(groups[key].commits, object.ParseID(commit)), shallow}
		}
	}
	return groups
}

// marker marks the objects that commits need.
type marker struct {
	ctx     context.Context // of the prune
	objects *object.Store
	parents map[object.ID][]object.ID // of the commits read so far; none if missing
	needed  map[object.ID]need
	who     need
}

// mark marks the objects of the tips' histories, which end at the shallow commits.
func (m *marker) mark(tips, shallow []object.ID, who need) error {
	m.who = who
	cut := setOf(shallow)
	return walkHistory(m.ctx, tips, map[object.ID]bool{}, func(h object.ID) ([]object.ID, error) {
		parents, err := m.commit(h)
		if cut[h] {
			parents = nil
		}
		return parents, err
	})
}

// commit marks a commit and its tree, and returns its parents.
func (m *marker) commit(h object.ID) ([]object.ID, error) {
	if parents, known := m.parents[h]; known {
		return parents, nil
	}
	present, err := m.objects.Has(h)
	if err != nil {
		return nil, object.Corruptf("prune the store: %w", err)
	}
	if !present {
		m.parents[h] = nil
		return nil, nil
	}
	commit, err := m.objects.Commit(h)
	if err != nil {
		return nil, object.Corruptf("prune the store: %w", err)
	}
	m.needed[h], m.parents[h] = m.who, commit.ParentHashes
	return commit.ParentHashes, m.tree(commit.TreeHash)
}

func (m *marker) tree(h object.ID) error {
	if m.needed[h] != byNone {
		return nil
	}
	m.needed[h] = m.who
	entries, err := m.objects.Tree(h)
	if errors.Is(err, object.ErrNotFound) {
		return nil
	}
	if err != nil {
		return object.Corruptf("prune the store: %w", err)
	}
	for _, e := range entries {
		if e.Mode == filemode.Dir {
			if err := m.tree(e.Hash); err != nil {
				return err
			}
		} else if m.needed[e.Hash] == byNone {
			m.needed[e.Hash] = m.who
		}
	}
	return nil
}
