package volume

import (
	"context"
	"errors"
	"path/filepath"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// flushTree makes the tree at path durable, with its name and the fence that this contains. Nothing names it yet.
func (f folder) flushTree(ctx context.Context, path string, files *checkout.Files) error {
	written := append(pathsIn(path, files.Written), f.fence())
	above := []string{f.trees(), f.dir}
	if files.Changed != nil {
		return disk.FlushChanged(append(written, pathsIn(path, files.GitWritten)...),
			append(above, pathsIn(path, files.Changed)...))
	}
	own, err := checkout.GitDirOf(path).Files()
	if err == nil {
		err = disk.Flush(ctx, path, append(written, own...))
	}
	return errors.Join(err, disk.FlushChanged(nil, above))
}

// flushStore makes a new store and the folders above it durable.
func (v *Volume) flushStore(in store) error {
	objects := filepath.Join(in.dir, "objects")
	folders := []string{objects, filepath.Join(objects, "pack"), filepath.Join(objects, "info"),
		filepath.Join(in.dir, "refs")}
	for dir := in.dir; len(dir) >= len(v.root); dir = filepath.Dir(dir) {
		folders = append(folders, dir)
	}
	files := []string{filepath.Join(in.dir, "config"), filepath.Join(in.dir, "HEAD")}
	return disk.Error("create the store", disk.FlushChanged(files, folders))
}
