package volume

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// tidy retires trees that no name links to any more, and discards retired trees and stores that nobody
// needs, and the files of crashed or stale holders. After most syncs there is nothing to do: then it takes
// no lock. It decides under the file lock, where everything not ours belongs to a lower fence; the caller
// deletes what it discards.
func (s *syncer) tidy(ctx context.Context) error {
	due, err := s.isDue()
	if err != nil {
		return err
	}
	if !due {
		return s.f.checkFence(s.req.Fence)
	}
	if err := s.queryHorizon(ctx); err != nil {
		return err
	}
	return s.f.guarded(ctx, s.req.Fence, s.clear)
}

func (s *syncer) clear() error {
	leftovers, err := s.f.leftovers()
	if err != nil {
		return err
	}
	for _, path := range leftovers {
		if err := s.f.discard(path); err != nil {
			return err
		}
	}
	links, over, err := s.activeLinks()
	if err != nil {
		return err
	}
	for _, path := range over {
		if err := unpublish(path); err != nil {
			return err
		}
	}
	if err := s.discardReclaimable(links); err != nil { // first: what is retired now stays until the next time at least
		return err
	}
	if err := s.f.retireUnlinked(links, s.horizon.Latest); err != nil {
		return err
	}
	if err := s.f.dropMarks(links); err != nil {
		return err
	}
	if err := s.f.dropStores(); err != nil {
		return err
	}
	return s.forgetMovedAway()
}

// discardReclaimable discards the spare trees that are not kept to be recycled. A tree that a reader has pinned stays, however old.
func (s *syncer) discardReclaimable(links map[string]string) error {
	trees, err := s.reclaimable(links)
	if err != nil {
		return err
	}
	isLeft := func(t retiredTree) bool { return s.binding.MovedAway.covers(t.name) }
	spare := slices.DeleteFunc(slices.Clone(trees), isLeft)
	trees = slices.DeleteFunc(trees, func(t retiredTree) bool { return !isLeft(t) })
	for _, tree := range append(trees, s.v.surplus(spare)...) {
		if _, err := s.f.discardUnpinned(tree.name); err != nil {
			return err
		}
	}
	return nil
}

// leftovers returns the paths of everything that is unfinished. Its holder has crashed, or is stale and will
// find that out; the caller has nothing unfinished of its own.
func (f folder) leftovers() (paths []string, err error) {
	isTemp := func(name string) bool { return strings.Contains(name, disk.TempInfix) }
	places := map[string]func(name string) bool{
		f.quarantines(): func(string) bool { return true },
		f.trees():       func(name string) bool { return strings.HasPrefix(name, buildPrefix) },
		f.dir:           func(name string) bool { return strings.HasPrefix(name, flipPrefix) || isTemp(name) },
	}
	generations, err := f.generations()
	if err != nil {
		return nil, err
	}
	for _, n := range generations {
		places[f.generation(n).dir] = isTemp
	}
	for dir, leftover := range places {
		entries, err := disk.ReadDir(dir)
		if err != nil {
			return nil, disk.Error("sweep", err)
		}
		for _, entry := range entries {
			if leftover(entry.Name()) {
				paths = append(paths, filepath.Join(dir, entry.Name()))
			}
		}
	}
	return paths, nil
}

// dropStores throws away the older generations of the store that no tree reads from any more.
func (f folder) dropStores() error {
	generations, err := f.generations()
	if err != nil || len(generations) < 2 {
		return err
	}
	current, err := f.currentStore()
	if err != nil {
		return err
	}
	needed := map[string]bool{current.dir: true}
	trees, err := disk.ReadDir(f.trees())
	if err != nil {
		return disk.Error("list the trees", err)
	}
	for _, tree := range trees {
		store, err := checkout.GitDirOf(f.tree(tree.Name())).Store()
		if err != nil {
			return nil // which one it needs cannot be told now: all stay until it can
		}
		needed[store] = true
	}
	for _, n := range generations {
		old := f.generation(n)
		if needed[old.dir] {
			continue
		}
		if err := f.discard(old.dir); err != nil {
			return err
		}
	}
	return nil
}
