package volume

import (
	"context"
	"path/filepath"
	"strings"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// tidy discards what a sync finds without looking at what is kept: retired trees that are due, useless prepared trees, and leftovers of
// crashed or stale holders. If there are leftovers, it looks at everything. It decides under the file lock, where all other work belongs
// to a lower fence. If there is nothing to do, as for most syncs, it takes no lock.
func (s *syncer) tidy(ctx context.Context) error {
	all, err := s.mustLookAtAll()
	if err != nil {
		return err
	}
	if all {
		return s.tidyAll(ctx)
	}
	useless, err := s.uselessPrepared()
	if err != nil {
		return err
	}
	due, err := s.isFirstDue(ctx)
	if err != nil {
		return err
	}
	if !due && len(useless) == 0 {
		return s.f.checkFence(s.req.Fence)
	}
	return s.f.guarded(ctx, s.req.Fence, func() error {
		if err := s.f.discardAt(useless); err != nil {
			return err
		}
		return s.discardDue()
	})
}

// tidyAll looks at all trees: it also retires those that are not published and have no mark, and discards stores that none needs.
func (s *syncer) tidyAll(ctx context.Context) error {
	if err := s.queryHorizon(ctx); err != nil {
		return err
	}
	return s.f.guarded(ctx, s.req.Fence, s.clear)
}

// mustLookAtAll reports whether a crashed holder left something, or a repository has moved away whose names are to be removed. It
// needs no lock: once our fence is recorded, no other holder changes names, marks or stores.
func (s *syncer) mustLookAtAll() (bool, error) {
	if s.binding.MovedAway.isExpired(s.v.cfg.Grace) {
		return true, nil
	}
	if leftovers, err := s.f.leftovers(); err != nil || len(leftovers) > 0 {
		return true, err
	}
	listed, err := s.f.hasLookList()
	return !listed, err
}

func (s *syncer) clear() error {
	leftovers, err := s.f.leftovers()
	if err != nil {
		return err
	}
	links, expired, err := s.activeLinks()
	if err != nil {
		return err
	}
	for _, path := range expired {
		if err := unpublish(path); err != nil {
			return err
		}
	}
	useless, err := s.uselessPrepared()
	if err != nil {
		return err
	}
	if err := s.f.discardAt(useless); err != nil {
		return err
	}
	if err := s.discardReclaimable(links); err != nil { // before retiring: newly retired trees stay
		return err
	}
	unlinked, err := s.f.unlinked(links)
	if err != nil {
		return err
	}
	if err := s.f.markRetired(unlinked, s.horizon.Latest); err != nil {
		return err
	}
	if err := s.f.dropMarks(links); err != nil {
		return err
	}
	if err := s.f.relist(); err != nil {
		return err
	}
	if err := s.f.dropStores(s.binding.MovedAway); err != nil {
		return err
	}
	if err := s.f.forgetDamaged(); err != nil {
		return err
	}
	if err := s.f.discardAt(leftovers); err != nil { // last, as they say that the rest is to be done
		return err
	}
	return s.forgetMovedAway()
}

// discardAt discards what is at these paths.
func (f folder) discardAt(paths []string) error {
	for _, path := range paths {
		if err := f.discard(path); err != nil {
			return err
		}
	}
	return nil
}

// discardReclaimable discards reclaimable trees except pinned ones.
func (s *syncer) discardReclaimable(links map[string]string) error {
	trees, err := s.reclaimable(links)
	if err != nil {
		return err
	}
	for _, tree := range trees {
		if _, err := s.f.discardUnpinned(tree.name); err != nil {
			return err
		}
	}
	return nil
}

// leftovers returns the paths of all unfinished work. It belongs to crashed or stale holders: the caller has none yet.
func (f folder) leftovers() (paths []string, err error) {
	isTemp := func(name string) bool { return strings.Contains(name, disk.TempInfix) }
	places := map[string]func(name string) bool{
		f.quarantines(): func(string) bool { return true },
		f.building():    func(string) bool { return true },
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
			return nil, disk.Error("list leftovers", err)
		}
		for _, entry := range entries {
			if leftover(entry.Name()) {
				paths = append(paths, filepath.Join(dir, entry.Name()))
			}
		}
	}
	return paths, nil
}

// dropStores discards the older store generations that no tree uses.
func (f folder) dropStores(movedAway *tombstone) error {
	generations, err := f.generations()
	if err != nil || len(generations) < 2 {
		return err
	}
	current, err := f.currentStore(movedAway)
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
			return nil // unknown which store the tree uses: keep them all
		}
		needed[store] = true
	}
	return f.discardStores(func(n int) bool { return !needed[f.generation(n).dir] })
}
