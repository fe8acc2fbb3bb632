package volume

import (
	"errors"
	"os"
	"path/filepath"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// damaged exists while a tree is marked as damaged, so that a sync reads all trees only then.
func (f folder) damaged() string { return filepath.Join(f.dir, "damaged") }

// markDamaged marks the tree at a path as damaged. The caller holds the file lock.
func (f folder) markDamaged(tree string) error {
	if err := os.WriteFile(f.damaged(), nil, 0o644); err != nil {
		return disk.Error("mark a damaged tree", err)
	}
	if err := disk.SyncDir(f.dir); err != nil {
		return disk.Error("mark a damaged tree", err)
	}
	return disk.Error("mark a damaged tree", checkout.GitDirOf(tree).Unmake())
}

// forgetDamaged removes the file once no tree is marked. The caller holds the file lock.
func (f folder) forgetDamaged() error {
	if _, err := os.Lstat(f.damaged()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	trees, err := disk.ReadDir(f.trees())
	if err != nil {
		return disk.Error("list the trees", err)
	}
	for _, tree := range trees {
		if checkout.GitDirOf(f.tree(tree.Name())).IsMarked() {
			return nil
		}
	}
	return disk.Error("forget damaged trees", os.Remove(f.damaged()))
}
