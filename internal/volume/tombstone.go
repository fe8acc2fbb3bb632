package volume

import (
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// departure tells of a repository that was in a folder and has moved away. Its names go on naming its trees
// for a grace, like those of a repository that is there; then they go, and its trees as all replaced ones do.
// Meanwhile the folder is free: another repository may be bound to it, which begins with a store of its own.
//
// It is part of the binding's file, so that a repository is here or has left, and never both or neither.
type tombstone struct {
	To    events.RepoPath `json:"to"`
	At    time.Time       `json:"at"`
	Fence uint64          `json:"fence"` // trees up to this fence are its own
	Store int             `json:"store"` // stores up to this generation are its own
}

// owns reports whether a tree is one of the repository that has left.
func (d *tombstone) covers(tree string) bool {
	if d == nil {
		return false
	}
	text, _, _ := strings.Cut(tree, "-")
	fence, err := strconv.ParseUint(text, 10, 64)
	return err == nil && fence <= d.Fence
}

// stores is the generation of the last store of the repository that has left; 0 for none.
func (d *tombstone) lastStore() int {
	if d == nil {
		return 0
	}
	return d.Store
}

// isOver reports whether the names have had their grace.
func (d *tombstone) isExpired(grace time.Duration) bool { return d != nil && time.Since(d.At) > grace }

// movedAwayStores is [tombstone.stores]. Of a binding that is damaged is told by whoever needs more of it.
func (f folder) movedAwayStores() (int, error) {
	b, _, err := f.readBinding()
	if events.DispositionOf(err) == events.Permanent {
		err = nil
	}
	return b.MovedAway.lastStore(), err
}

func (f folder) hasTombstone() bool {
	b, _, err := f.readBinding()
	return err == nil && b.MovedAway != nil
}

// activeLinks returns the trees that names link to, by path, and the paths of those names that have had their
// grace since their repository moved away.
func (s *syncer) activeLinks() (links map[string]string, over []string, err error) {
	links, err = s.v.links(s.f, s.binding)
	if err != nil || !s.binding.MovedAway.isExpired(s.v.cfg.Grace) {
		return links, nil, err
	}
	for path, tree := range links {
		if s.binding.MovedAway.covers(tree) {
			over = append(over, path)
			delete(links, path)
		}
	}
	return links, over, nil
}

// forgetMovedAway throws away the stores of a repository that has left when the last of its trees is gone, and
// then the departure. Where no other repository has come, all goes but the fence. The caller holds the
// file lock.
func (s *syncer) forgetMovedAway() error {
	left := s.binding.MovedAway
	if !left.isExpired(s.v.cfg.Grace) {
		return nil
	}
	trees, err := disk.ReadDir(s.f.trees())
	if err != nil {
		return disk.Error("list the trees", err)
	}
	for _, tree := range trees {
		if left.covers(tree.Name()) {
			return nil
		}
	}
	if s.binding.Remote == "" {
		s.binding.MovedAway = nil
		return s.f.discardAll()
	}
	if err := s.f.discardStores(func(n int) bool { return n <= left.Store }); err != nil {
		return err
	}
	s.binding.MovedAway = nil
	return s.f.writeBinding(s.binding)
}

// discardStores throws away the generations of the store that are chosen.
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

// leave marks the repository as moved away, in one step. The caller holds the file lock.
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
	return f.writeBinding(binding{Repo: b.Repo, MovedAway: &left})
}

// discardAll throws away all that a repository has but its fence, and clones that were adopted. The binding,
// by which the repository is known, goes last.
func (f folder) discardAll() error {
	for _, path := range []string{f.trees(), f.retired(), f.quarantines(), f.stores(), f.usage(), f.binding()} {
		if err := f.discard(path); err != nil {
			return err
		}
	}
	return disk.Error("remove", disk.SyncDir(f.dir))
}

// generationOf returns the generation of the store that a tree reads from; 0 when that cannot be told.
func (f folder) generationOf(tree string) int {
	dir, err := checkout.GitDirOf(f.tree(tree)).Store()
	if err != nil || filepath.Dir(dir) != f.stores() {
		return 0
	}
	return store{dir}.number()
}
