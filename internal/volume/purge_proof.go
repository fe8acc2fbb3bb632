package volume

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// prove reads the volume again. It fails if anything has one of the deleted objects, or is of a deleted commit, and nothing pins it.
func (p *purge) prove(ctx context.Context) error {
	outside, err := p.outside()
	if err != nil {
		return err
	}
	p.pin(outside...)
	if err := p.awaitTrash(ctx); err != nil {
		return err
	}
	ids := append(slices.Collect(maps.Keys(p.doomed)), p.commit)
	found, err := p.find(ctx, ids...)
	if err != nil {
		return err
	}
	trees, err := disk.ReadDir(p.f.trees())
	if err != nil {
		return disk.Error("list the trees", err)
	}
	for _, tree := range trees {
		commit := object.ParseID(checkout.GitDirOf(p.f.tree(tree.Name())).BuiltFrom())
		if commit == p.commit || p.ancestry[commit]&isPurged != 0 {
			found = append(found, p.v.relative(p.f.tree(tree.Name())))
		}
	}
	if len(found) == 0 || p.result.waits() {
		return nil
	}
	return events.Errorf(events.Retryable, events.ClassVolume, "%s still has it: run the command again; if that does not help, run lockstep repos verify --repair", found[0])
}

// find returns the stores and other bare repositories of the repository that have one of the objects, relative to the root.
func (p *purge) find(ctx context.Context, ids ...object.ID) (found []string, err error) {
	dirs, err := p.f.storeDirs()
	if err != nil {
		return nil, err
	}
	parts, err := p.f.listParts()
	if err != nil {
		return nil, err
	}
	dirs = append(dirs, parts...)
	quarantines, err := disk.ReadDir(p.f.quarantines())
	if err != nil {
		return nil, disk.Error("list the quarantines", err)
	}
	for _, q := range quarantines {
		dirs = append(dirs, filepath.Join(p.f.quarantines(), q.Name()))
	}
	for _, dir := range dirs {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		has, err := hasAny(dir, ids...)
		if err != nil {
			return nil, object.Corruptf("look for the commit in %s: %w", p.v.relative(dir), err)
		}
		if has {
			found = append(found, p.v.relative(dir))
		}
	}
	return found, nil
}

// outside returns the copies of the commit that Lockstep must not delete.
func (p *purge) outside() (pins []Pin, err error) {
	adopted, err := p.adopted()
	if err != nil {
		return nil, err
	}
	fetched, err := p.fetched()
	return append(adopted, fetched...), err
}

// fetched returns the trees whose own .git has the commit, because somebody fetched it there.
func (p *purge) fetched() (pins []Pin, err error) {
	trees, err := disk.ReadDir(p.f.trees())
	if err != nil {
		return nil, disk.Error("list the trees", err)
	}
	for _, tree := range trees {
		has, err := hasAny(p.f.tree(tree.Name()), p.commit)
		if err != nil {
			return nil, object.Corruptf("look for the commit in a tree: %w", err)
		}
		if has {
			pins = append(pins, Pin{Kind: PinFetched, Path: p.v.relative(p.f.tree(tree.Name()))})
		}
	}
	return pins, nil
}

const (
	trashTries = 20
	trashPause = 50 * time.Millisecond
)

// awaitTrash waits until the trash is deleted. Other processes may be deleting it, too.
func (p *purge) awaitTrash(ctx context.Context) error {
	for range trashTries {
		left := 0
		for _, f := range []folder{p.f, p.f.views()} {
			f.emptyTrash()
			entries, err := disk.ReadDir(f.trash())
			if err != nil {
				return disk.Error("list the trash", err)
			}
			left += len(entries)
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(trashPause):
		}
	}
	return events.Errorf(events.Retryable, events.ClassVolume, "what is in %s cannot be deleted: check who owns it, delete it, and run the command again", p.f.trash())
}

// purges has a file for each commit whose purge is not complete.
func (f folder) purges() string { return filepath.Join(f.dir, "purges") }

// replacedMark is the content of the file of a purge with Replaced.
const replacedMark = "replaced\n"

// note records the purge, so that GC completes it.
func (p *purge) note(ctx context.Context) error {
	content := ""
	if p.req.Replaced {
		content = replacedMark
	}
	return p.f.guarded(ctx, p.req.Fence, func() error {
		err := os.MkdirAll(p.f.purges(), 0o755)
		if err == nil {
			err = disk.Replace(filepath.Join(p.f.purges(), p.commit.String()), []byte(content))
		}
		if err == nil {
			err = disk.SyncDir(p.f.dir)
		}
		return disk.Error("record the purge", err)
	})
}

// isNoted reports whether an earlier run has begun and is not complete.
func (p *purge) isNoted() (bool, error) {
	_, err := os.Lstat(filepath.Join(p.f.purges(), p.commit.String()))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, disk.Error("read the record of a purge", err)
}

// isPurgeMarked reports whether discardTree has marked a pinned tree.
func (f folder) isPurgeMarked(tree string) bool {
	info, err := os.Stat(f.mark(tree))
	return err == nil && info.ModTime().Unix() == 0
}

// forget removes the record of a purge that is complete.
func (p *purge) forget(ctx context.Context) error {
	path := filepath.Join(p.f.purges(), p.commit.String())
	if _, err := os.Lstat(path); p.req.DryRun || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return p.f.guarded(ctx, p.req.Fence, func() error {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return disk.Error("forget the purge", err)
		}
		_ = os.Remove(p.f.purges()) // fails while there are others
		return nil
	})
}

// pendingPurges lists the purges that are not complete.
func (f folder) pendingPurges() (commits []string, err error) {
	entries, err := disk.ReadDir(f.purges())
	if err != nil {
		return nil, disk.Error("list the purges", err)
	}
	for _, entry := range entries {
		if object.IsID(entry.Name()) {
			commits = append(commits, entry.Name())
		}
	}
	return commits, nil
}

// resumePurges continues the incomplete purges, unless the pins that they wait for still exist.
func (v *Volume) resumePurges(ctx context.Context, f folder, req GCRequest) error {
	commits, err := f.pendingPurges()
	if err != nil {
		return err
	}
	for _, commit := range commits {
		content, err := os.ReadFile(filepath.Join(f.purges(), commit))
		if err != nil {
			return disk.Error("read the record of a purge", err)
		}
		again := PurgeRequest{Repo: req.Repo, Commit: commit, Fence: req.Fence, Replaced: string(content) == replacedMark, DryRun: true}
		foreseen, err := v.purge(ctx, f, again)
		if again.DryRun = false; err == nil && (!foreseen.waits() || len(foreseen.Trees) > 0) {
			_, err = v.purge(ctx, f, again)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyPurges copies the incomplete purges to To, which gets links to all objects.
func (m *mover) copyPurges(ctx context.Context) error {
	commits, err := m.from.pendingPurges()
	if err != nil || len(commits) == 0 {
		return err
	}
	return m.to.guarded(ctx, m.req.ToFence, func() error {
		if err := os.MkdirAll(m.to.purges(), 0o755); err != nil {
			return disk.Error("copy the purges", err)
		}
		for _, commit := range commits {
			content, err := os.ReadFile(filepath.Join(m.from.purges(), commit))
			if err == nil {
				err = disk.Replace(filepath.Join(m.to.purges(), commit), content)
			}
			if err != nil {
				return disk.Error("copy the purges", err)
			}
		}
		return disk.Error("copy the purges", disk.SyncDir(m.to.dir))
	})
}
