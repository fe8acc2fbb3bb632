package volume

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"

	"lockstep/events"
	"lockstep/internal/disk"
)

// IsGone reports whether a repository has nothing on the volume but its fence and other bookkeeping: no objects, no
// tree, not even a pinned one, and no adopted clone. It needs no lease.
func (v *Volume) IsGone(repo events.RepoPath) (bool, error) { return v.folder(repo).isGone() }

func (f folder) isGone() (bool, error) {
	for _, place := range []string{f.stores(), f.trees(), f.adopted()} {
		if entries, err := disk.ReadDir(place); err != nil || len(entries) > 0 {
			return false, disk.Error("see whether the repository is gone", err)
		}
	}
	b, _, err := f.readBinding()
	return err == nil && b.MovedAway == nil, err
}

// Forget deletes the folder of a repository that is gone, with its fence, and reports whether there is none now. The
// caller holds the lease with the given fence. Nobody else has held it for the safe time: see the package documentation.
func (v *Volume) Forget(ctx context.Context, repo events.RepoPath, fence uint64) (forgotten bool, err error) {
	f := v.folder(repo)
	if _, err := os.Lstat(f.dir); errors.Is(err, os.ErrNotExist) {
		return true, v.checkMounted()
	}
	if err := f.recordUnsynced(ctx, fence); err != nil {
		return false, err
	}
	trash := filepath.Join(v.root, adminDir, tryPrefix+rand.Text()) // after a crash, SweepLeftovers deletes it
	err = f.guarded(ctx, fence, func() error {
		if forgotten, err = f.isGone(); err != nil || !forgotten {
			return err
		}
		return disk.Error("delete the repository's folder", os.Rename(f.dir, trash))
	})
	if err != nil || !forgotten {
		return false, err
	}
	_ = os.Remove(filepath.Dir(f.dir)) // the owner's, if it is empty
	return true, os.RemoveAll(trash)
}
