package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
)

// GCRequest is a request to clean up a repository outside of a sync.
type GCRequest struct {
	Repo  events.RepoPath
	Fence uint64 // of the lease held on Repo; above zero
	Full  bool   // prune and measure even if nothing has changed

	EndPins bool // after a purge, also delete the replaced trees that readers pin
}

// GCResult is the result of a [Volume.GC].
type GCResult struct {
	Usage Usage // after
	Freed int64 // bytes; 0 if usage grew
	Trees int   // deleted trees
}

// GC deletes trees past their grace, leftovers of crashed holders, and objects that no tree and no ref needs,
// and measures the rest. Published trees and adopted clones stay. The caller holds the lease, as for
// [Volume.Sync]. GC returns the zero result if the repository is not on the volume.
func (v *Volume) GC(ctx context.Context, req GCRequest) (GCResult, error) {
	if err := v.checkRequest(req.Repo, req.Fence); err != nil {
		return GCResult{}, err
	}
	f := v.folder(req.Repo)
	result, err := v.collect(ctx, f, req)
	if err != nil {
		return GCResult{}, fmt.Errorf("tidy %s: %w", req.Repo, f.explain(ctx, req.Fence, err))
	}
	return result, nil
}

func (v *Volume) collect(ctx context.Context, f folder, req GCRequest) (GCResult, error) {
	if _, err := os.Lstat(f.dir); errors.Is(err, os.ErrNotExist) {
		return GCResult{}, nil // recording a fence would create the folder
	}
	if err := f.record(ctx, req.Fence); err != nil {
		return GCResult{}, err
	}
	b, bound, err := f.readBinding()
	if err != nil {
		return GCResult{}, err
	}
	if !bound && b.MovedAway == nil {
		f.emptyTrash() // left behind by a crashed removal
		return GCResult{}, nil
	}
	before, known, err := v.usageNow(ctx, f)
	if err != nil {
		return GCResult{}, err
	}
	s := &holder{v: v, f: f, fence: req.Fence, binding: b, endPins: req.EndPins}
	if err := s.tidyNow(ctx); err != nil {
		return GCResult{}, err
	}
	f.emptyTrash()
	if !bound && s.binding.MovedAway == nil { // the repository that had moved away is now gone
		return GCResult{Freed: before.Bytes, Trees: before.Trees}, nil
	}
	if err := f.guarded(ctx, req.Fence, f.sweepAdopted); err != nil {
		return GCResult{}, err
	}
	contents, _, err := f.contents()
	if err != nil {
		return GCResult{}, err
	}
	if known && !req.Full && contents == before.Contents {
		return GCResult{Usage: before}, nil
	}
	if err := s.prune(ctx); err != nil {
		return GCResult{}, err
	}
	now, err := v.measure(ctx, f)
	if err != nil {
		return GCResult{}, err
	}
	if err := f.guarded(ctx, req.Fence, func() error { return f.writeUsage(now) }); err != nil {
		return GCResult{}, err
	}
	return GCResult{Usage: now, Freed: max(0, before.Bytes-now.Bytes), Trees: max(0, before.Trees-now.Trees)}, nil
}

// usageNow returns the repository's usage. known is true if the last measurement is still exact.
func (v *Volume) usageNow(ctx context.Context, f folder) (u Usage, known bool, err error) {
	u = readCache[Usage](f.usage())
	if !u.Measured.IsZero() && u.Added == 0 {
		return u, true, nil
	}
	u, err = v.measure(ctx, f)
	return u, false, err
}

// IsTidy reports whether [Volume.GC] has no work to do for repo, judging by a few folders. It needs no lease.
func (v *Volume) IsTidy(repo events.RepoPath) bool {
	f := v.folder(repo)
	known := readCache[Usage](f.usage())
	contents, _, err := f.contents()
	if err != nil || known.Measured.IsZero() || known.Added > 0 || known.Contents != contents {
		return false
	}
	if trash, err := disk.ReadDir(f.trash()); err != nil || len(trash) > 0 {
		return false
	}
	if leftovers, err := f.leftovers(); err != nil || len(leftovers) > 0 {
		return false
	}
	if purged, err := f.purgeMarks(); err != nil || len(purged) > 0 {
		return false
	}
	b, _, err := f.readBinding()
	if err != nil || b.MovedAway.isExpired(v.cfg.Grace) {
		return false
	}
	expired, err := f.expired(nil, v.cfg.Grace)
	if err != nil || len(expired) > 0 {
		return false
	}
	prepared, err := f.preparedTrees()
	return err == nil && !slices.ContainsFunc(prepared, func(t preparedTree) bool { return t.age > v.cfg.KeepPrepared })
}

// listBatch is the maximum number of folder entries in memory at once.
const listBatch = 256

// Repos lists the repositories on the volume as first spelled, in no order, including those that have moved
// away and are not fully cleaned up yet. It yields an error for an unreadable binding and continues.
// Repositories added or removed meanwhile may be missing.
func (v *Volume) Repos() iter.Seq2[events.RepoPath, error] {
	return func(yield func(events.RepoPath, error) bool) {
		for owner, err := range subfolders(v.reposDir()) {
			if err != nil {
				yield(events.RepoPath{}, err)
				return
			}
			for dir, err := range subfolders(owner) {
				b, bound := binding{}, false
				if err == nil {
					b, bound, err = folder{dir}.readBinding()
				}
				if (bound || b.MovedAway != nil || err != nil) && !yield(b.Repo, err) {
					return
				}
			}
		}
	}
}

// subfolders lists the paths of the folders in dir.
func subfolders(dir string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		open, err := os.Open(dir)
		if errors.Is(err, os.ErrNotExist) {
			return
		}
		if err != nil {
			yield("", disk.Error("list repositories", err))
			return
		}
		defer open.Close()
		for {
			entries, err := open.ReadDir(listBatch)
			for _, entry := range entries {
				if entry.IsDir() && !yield(filepath.Join(dir, entry.Name()), nil) {
					return
				}
			}
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrNotExist) { // it was deleted meanwhile
				return
			}
			if err != nil {
				yield("", disk.Error("list repositories", err))
				return
			}
		}
	}
}

// leftoverAge is the minimum age of a temporary file that is considered left behind by a crashed process.
const leftoverAge = time.Hour

// SweepLeftovers deletes what crashed processes left behind while opening the volume.
func (v *Volume) SweepLeftovers() error {
	dir := filepath.Join(v.root, adminDir)
	entries, err := disk.ReadDir(dir)
	if err != nil {
		return disk.Error("sweep the volume", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, tryPrefix) && !strings.HasPrefix(name, idName+"-") &&
			!strings.Contains(name, disk.TempInfix) {
			continue
		}
		info, err := entry.Info()
		if err != nil || time.Since(info.ModTime()) < leftoverAge {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return disk.Error("sweep the volume", err)
		}
	}
	return nil
}
