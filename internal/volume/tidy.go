package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// tidy retires trees that are no longer published, and discards retired trees and stores that are no longer needed, and
// leftovers of crashed or stale holders. It decides under the file lock, where all other work belongs to a lower fence.
//
// Looking at all trees takes the longer the more are kept. So unless there are leftovers, a sync does it only
// if none has for half of the grace, and the cost of a push does not grow with what is kept. A tree stays
// about one more grace at most.
func (h *holder) tidy(ctx context.Context) error {
	due, err := h.isTidyDue()
	if err != nil {
		return err
	}
	if !due {
		return h.f.checkFence(h.fence)
	}
	return h.tidyNow(ctx)
}

// tidyNow is tidy whether it is due or not.
func (h *holder) tidyNow(ctx context.Context) error {
	if err := h.queryHorizon(ctx); err != nil {
		return err
	}
	h.tidied = true
	return h.f.guarded(ctx, h.fence, h.clear)
}

// isTidyDue needs no lock: once our fence is recorded, no other holder leaves anything.
func (h *holder) isTidyDue() (bool, error) {
	info, err := os.Stat(h.f.tidied())
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, disk.Error("see when the trees were last looked at", err)
	}
	if since := time.Since(info.ModTime()); since < 0 || since > h.v.cfg.Grace/2 {
		return true, nil
	}
	leftovers, err := h.f.leftovers()
	return len(leftovers) > 0, err
}

func (h *holder) clear() error {
	leftovers, err := h.f.leftovers()
	if err != nil {
		return err
	}
	links, expired, err := h.activeLinks()
	if err != nil {
		return err
	}
	if err := unpublish(expired...); err != nil {
		return err
	}
	dirs, err := h.f.subtreeFolders(h.binding)
	if err != nil {
		return err
	}
	if err := h.v.forgetFolders(h.f, dirs); err != nil {
		return err
	}
	useless, err := h.uselessPrepared()
	if err != nil {
		return err
	}
	if err := h.f.discardAt(useless); err != nil {
		return err
	}
	if err := h.discardReclaimable(links); err != nil { // before retiring: newly retired trees stay
		return err
	}
	pinned, err := h.discardReplaced(links)
	if err != nil {
		return err
	}
	unlinked, err := h.f.unlinked(links)
	if err != nil {
		return err
	}
	if err := h.f.markRetired(unlinked, h.horizon.Latest); err != nil {
		return err
	}
	if err := h.f.dropMarks(links); err != nil {
		return err
	}
	if !pinned { // otherwise the purged stores say that it is to be completed
		if err := h.f.dropStores(h.binding.MovedAway); err != nil {
			return err
		}
	}
	if err := h.f.forgetDamaged(); err != nil {
		return err
	}
	if err := h.f.discardAt(leftovers); err != nil { // last, as they say that the rest is to be done
		return err
	}
	if err := h.forgetMovedAway(); err != nil || h.binding.Remote == "" { // then the folder may be gone
		return err
	}
	if purged, err := h.f.purgeMarks(); err != nil || len(purged) > 0 { // the next sync continues
		return err
	}
	return disk.Error("note that the trees were looked at", os.WriteFile(h.f.tidied(), []byte("\n"), 0o644))
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
func (h *holder) discardReclaimable(links map[string]string) error {
	trees, err := h.reclaimable(links)
	if err != nil {
		return err
	}
	for _, tree := range trees {
		if _, err := h.f.discardUnpinned(tree.name); err != nil {
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
