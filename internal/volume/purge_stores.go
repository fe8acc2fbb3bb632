package volume

import (
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"lockstep/internal/disk"
	"lockstep/internal/git/object"
)

// rewriteStores deletes all objects that are not needed from the stores. A pack that has some is replaced by one without them.
// A store whose objects workspaces may use stays as it is. All refs are dropped before any object is deleted: the objects that
// show that a ref descends from the commit may be in another store.
func (p *purge) rewriteStores(ctx context.Context) error {
	generations, err := p.f.generations()
	if err != nil {
		return err
	}
	var stores []*storeRewrite
	for _, n := range generations {
		kept, err := p.keptRefs(ctx, p.f.generation(n))
		if err != nil {
			return err
		}
		stores = append(stores, &storeRewrite{p: p, s: p.f.generation(n), kept: kept})
	}
	for dir, commit := range p.parts { // they have the objects and refs of those that they were fetched upon
		stores = append(stores, &storeRewrite{p: p, s: store{dir}, kept: map[string]object.ID{commit.String(): commit}})
	}
	for _, w := range stores {
		if err := w.change(ctx, w.keepRefs); err != nil {
			return err
		}
	}
	p.v.done("purge refs")
	for _, w := range stores {
		if err := w.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// run deletes the objects that are not needed. It does nothing if the store is pinned.
func (w *storeRewrite) run(ctx context.Context) error {
	if w.pinned {
		return nil
	}
	if err := w.rewritePacks(ctx); err != nil || w.pinned {
		return err
	}
	loose, err := w.s.sortLoose(w.p.needed)
	if err != nil {
		return disk.Error("purge the store", err)
	}
	for step := range slices.Chunk(loose.unneeded, pruneStep) {
		err := w.change(ctx, func() error { return removeAll(step) })
		if err != nil || w.pinned {
			return err
		}
		w.p.v.done("purge loose")
	}
	return nil
}

func removeAll(paths []string) error {
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return disk.Error("purge the store", err)
		}
	}
	return nil
}

// storeRewrite deletes objects from one store.
type storeRewrite struct {
	p      *purge
	s      store
	kept   map[string]object.ID // refs
	pinned bool                 // workspaces may use objects that nothing else needs
}

// change runs fn under the file lock, while no workspace can start to use the store. It does nothing and sets pinned if one does.
func (w *storeRewrite) change(ctx context.Context, fn func() error) error {
	return w.p.f.guarded(ctx, w.p.req.Fence, func() error {
		release, ok, err := claimObjects(w.s)
		if err != nil {
			return disk.Error("purge the store", err)
		}
		if !ok {
			w.pinned = true
			w.p.pin(w.p.pinsOfStore(w.s)...)
			return nil
		}
		defer release()
		return fn()
	})
}

// keepRefs drops all other refs: Git must not see refs of missing objects.
func (w *storeRewrite) keepRefs() error {
	refs, err := w.s.refs()
	if err == nil && !maps.Equal(refs, w.kept) {
		err = w.s.writeRefs(w.kept)
		if err == nil { // before objects are deleted
			err = disk.Error("write the store's refs", disk.FlushChanged([]string{filepath.Join(w.s.dir, "packed-refs")}, []string{w.s.dir}))
		}
	}
	if err != nil {
		return err
	}
	shallow := w.s.shallow()
	remaining := slices.DeleteFunc(slices.Clone(shallow), func(h object.ID) bool { return w.p.needed[h] == byNone })
	if len(remaining) == len(shallow) {
		return nil
	}
	return disk.Error("write the store's shallow list", object.WriteShallow(w.s.dir, remaining))
}

// rewritePacks replaces the packs that have objects which are not needed.
func (w *storeRewrite) rewritePacks(ctx context.Context) error {
	objects := object.Open(w.s.dir)
	defer objects.Close()
	stored, err := objects.Stored()
	if err != nil {
		return object.Corruptf("purge the store: %w", err)
	}
	keep := func(h object.ID) bool { return w.p.needed[h] != byNone }
	for pack := range stored.Packs() {
		kept, err := stored.CountKept(pack, keep)
		if err != nil {
			return object.Corruptf("purge the store: %w", err)
		}
		if kept == stored.Count(pack) {
			continue
		}
		q, err := w.writePack(ctx, stored, pack, kept, keep)
		if err != nil {
			return err
		}
		w.p.v.done("purge pack written")
		err = w.change(ctx, func() error { return w.replacePack(q, stored.PackName(pack)) })
		if err != nil || w.pinned {
			return err
		}
	}
	return disk.Error("purge the store", os.RemoveAll(w.p.f.quarantine(w.p.req.Fence)))
}

// writePack writes the objects of a pack that are kept to a new one, and checks each.
func (w *storeRewrite) writePack(ctx context.Context, stored *object.Stored, pack, kept int, keep func(object.ID) bool) (q object.Quarantine, err error) {
	if q, err = object.OpenQuarantine(w.p.f.quarantine(w.p.req.Fence)); err != nil || kept == 0 {
		return q, err
	}
	q.Format, _ = object.FormatOf(w.s.dir)
	file, err := q.CreatePack()
	if err != nil {
		return q, err
	}
	err = stored.WriteKept(ctx, pack, keep, file)
	if err = errors.Join(err, file.(io.Closer).Close()); err != nil {
		return q, err
	}
	unlimited := object.Limits{
		MaxFileBytes: math.MaxInt64, MaxInflatedBytes: math.MaxInt64, MaxTreeFiles: math.MaxInt32, FetchTimeout: w.p.v.cfg.FetchTimeout,
	}
	return q, q.Index(ctx, unlimited, object.Progress{})
}

// replacePack moves the new pack into the store, on disk, before it deletes the old one. The caller holds the file lock.
func (w *storeRewrite) replacePack(q object.Quarantine, old string) error {
	if err := q.Release(w.s.dir, true); err != nil {
		return err
	}
	w.p.v.done("purge pack placed")
	files, err := disk.Glob(filepath.Dir(old), filepath.Base(old)+".*")
	if err != nil {
		return disk.Error("purge the store", err)
	}
	// The pack goes first: an index without a pack is ignored, and a pack without an index is damage.
	for _, path := range append([]string{old + ".pack"}, files...) {
		if err := removeAll([]string{path}); err != nil {
			return err
		}
		w.p.v.done("purge pack removed")
	}
	return disk.Error("purge the store", disk.SyncDir(filepath.Dir(old)))
}

// foreseeStores adds the workspaces that keep the stores as they are.
func (p *purge) foreseeStores() error {
	generations, err := p.f.generations()
	if err != nil {
		return err
	}
	for _, n := range generations {
		release, ok, err := claimObjects(p.f.generation(n))
		switch {
		case err != nil:
			return disk.Error("look for workspaces", err)
		case ok:
			release()
		default:
			p.pin(p.pinsOfStore(p.f.generation(n))...)
		}
	}
	return nil
}
