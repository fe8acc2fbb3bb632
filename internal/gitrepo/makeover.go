package gitrepo

import (
	"context"
	"errors"
	"path"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"
)

var errNoManifest = errors.New("the tree's manifest or commit cannot be read")

// makeOver turns the tree at dst, of another commit, into the plan's: it rewrites only the files that differ. begin is
// called with their number, and count for each. After an error the tree at dst is useless.
func (p *plan) makeOver(
	ctx context.Context, objects *objects, dst string, links LinkPolicy, limits checkoutLimits, begin, count func(files int64),
) (files *builtFiles, err error) {
	defer recoverCorrupt(&err)
	old := openLastTree(dst, links)
	if old == nil {
		return nil, errNoManifest
	}
	before, known := objects.treeOf(old.commit)
	if !known {
		return nil, errNoManifest
	}
	found, err := differences(ctx, objects, before, p.tree, limits.MaxTreeFiles)
	if err != nil {
		return nil, err
	}
	to, err := descend(dst)
	if err != nil {
		return nil, buildError(err)
	}
	defer to.close()
	for _, d := range found {
		if err := clearPath(to, d); err != nil {
			return nil, buildError(err)
		}
	}
	begin(int64(len(found)))
	files = &builtFiles{}
	made := make(map[string]tracked, len(found))
	w := writer{objects, links}
	for _, d := range found {
		count(1)
		if d.after.mode == 0 {
			continue
		}
		folder, err := to.enter(folderOf(d.path), dir.openOrMake)
		if err != nil {
			return nil, buildError(err)
		}
		t, err := w.write(ctx, folder, entry{d.path, d.after.mode, d.after.hash}, path.Base(d.path))
		if err != nil {
			return nil, err
		}
		made[d.path] = t
		if !t.isSkipped() && t.mode != filemode.Submodule {
			files.written = append(files.written, d.path)
		}
	}
	files.index = func() ([]byte, error) {
		content, bytes, err := amend(gitDirOf(dst).manifest(), found, made)
		if err == nil && bytes > limits.MaxTreeBytes {
			err = treeTooLarge(limits.MaxTreeBytes)
		}
		return content, err
	}
	return files, nil
}

// clearPath removes the old entry of a change, and the folders that are empty then. It never writes to a changed file,
// which other trees share.
func clearPath(d *descent, change difference) error {
	if change.before.mode == 0 {
		return nil
	}
	folder, err := d.enter(folderOf(change.path), dir.open)
	if err != nil {
		return err
	}
	if err := folder.remove(path.Base(change.path), change.before.mode == filemode.Submodule); err != nil {
		return err
	}
	if change.after.mode != 0 {
		return nil
	}
	for empty := d.at; empty != ""; empty = folderOf(empty) {
		above, err := d.enter(folderOf(empty), dir.open)
		if err != nil {
			return err
		}
		switch err := above.remove(path.Base(empty), true); {
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}
