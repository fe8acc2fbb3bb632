package volume

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// tombstone describes a repository that has moved away. Its names stay published for a grace period, then its trees are
// retired like replaced ones. Meanwhile another repository may be bound to the path, with a new store.
//
// It is part of the binding's file, so that a repository changes from present to moved atomically.
type tombstone struct {
	To    events.RepoPath `json:"to"`
	At    time.Time       `json:"at"`
	Fence uint64          `json:"fence"` // trees up to this fence belong to it
	Store int             `json:"store"` // stores up to this generation belong to it
}

// covers reports whether a tree belongs to the repository that has moved away. d may be nil.
func (d *tombstone) covers(tree string) bool {
	if d == nil {
		return false
	}
	text, _, _ := strings.Cut(tree, "-")
	fence, err := strconv.ParseUint(text, 10, 64)
	return err == nil && fence <= d.Fence
}

// lastStore returns the last store generation of the repository that has moved away, or 0.
func (d *tombstone) lastStore() int {
	if d == nil {
		return 0
	}
	return d.Store
}

// isExpired reports whether the grace period of the names has ended.
func (d *tombstone) isExpired(grace time.Duration) bool { return d != nil && time.Since(d.At) > grace }

// activeLinks returns the published trees by path, with subtrees. The paths of names whose repository has moved away
// and whose grace period has ended are returned separately.
func (h *holder) activeLinks() (links map[string]string, expired []string, err error) {
	links, err = h.v.withSubtrees(h.v.links, h.f, h.binding)
	if err != nil || !h.binding.MovedAway.isExpired(h.v.cfg.Grace) {
		return links, nil, err
	}
	for path, tree := range links {
		if h.binding.MovedAway.covers(tree) {
			expired = append(expired, path)
			delete(links, path)
		}
	}
	return links, expired, nil
}

// forgetMovedAway removes the stores and the tombstone of a repository that has moved away, once its last tree is gone.
// If no other repository is bound to the path, everything but the fence goes. The caller holds the file lock.
func (h *holder) forgetMovedAway() error {
	left := h.binding.MovedAway
	if !left.isExpired(h.v.cfg.Grace) {
		return nil
	}
	trees, err := disk.ReadDir(h.f.trees())
	if err != nil {
		return disk.Error("list the trees", err)
	}
	for _, tree := range trees {
		if left.covers(tree.Name()) {
			return nil
		}
	}
	if h.binding.Remote == "" {
		h.binding.MovedAway = nil
		return h.f.discardAll()
	}
	if err := h.f.discardStores(func(n int) bool { return n <= left.Store }); err != nil {
		return err
	}
	h.binding.MovedAway = nil
	return h.f.writeBinding(h.binding)
}

// discardStores discards the chosen store generations.
func (f folder) discardStores(chosen func(n int) bool) error {
	generations, err := f.generations()
	if err != nil {
		return err
	}
	for _, n := range generations {
		if !chosen(n) {
			continue
		}
		if err := f.discard(f.generation(n).dir); err != nil {
			return err
		}
	}
	return nil
}

// markMovedAway marks the repository as moved away, atomically. The caller holds the file lock.
func (f folder) markMovedAway(b binding, to events.RepoPath, fence uint64) error {
	generations, err := f.generations()
	if err != nil {
		return err
	}
	last := b.MovedAway.lastStore()
	if len(generations) > 0 {
		last = max(last, generations[len(generations)-1])
	}
	left := tombstone{To: to, At: time.Now().UTC(), Fence: fence, Store: last}
	if err := f.writeBinding(binding{Repo: b.Repo, MovedAway: &left}); err != nil {
		return err
	}
	return f.limitPrepared(0)
}

// discardAll discards everything but the fence and adopted clones. The binding goes last, so that an
// interrupted removal can be repeated.
func (f folder) discardAll() error {
	err := f.discardAt([]string{
		f.trees(), f.building(), f.prepared(), f.retired(), f.tidied(), f.damaged(), f.quarantines(), f.stores(),
		f.lfs(), f.parts(), f.origins(), f.listed(), f.usage(), f.binding(),
	})
	if err != nil {
		return err
	}
	return disk.Error("remove", disk.SyncDir(f.dir))
}

// tookParts reports whether a tree is of a repository that has moved away with the stores of the tree's submodules.
func (f folder) tookParts(left *tombstone, tree string) bool {
	if !left.covers(tree) {
		return false
	}
	parts, err := checkout.GitDirOf(f.tree(tree)).Parts()
	return err == nil && slices.ContainsFunc(parts.List, checkout.Part.IsFilled)
}

// generationOf returns the generation of the store that a tree uses, or 0 if unknown.
func (f folder) generationOf(tree string) int {
	dir, err := checkout.GitDirOf(f.tree(tree)).Store()
	if err != nil || filepath.Dir(dir) != f.stores() {
		return 0
	}
	return store{dir}.number()
}
