package checkout

import (
	"context"
	"errors"
	"math"
	"path"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/object"
)

var (
	errNoManifest   = errors.New("the tree's manifest or commit cannot be read")
	errLinksChanged = errors.New("symbolic links have changed")
)

// Patch turns the tree of another commit at dst into the plan's tree by replacing the files that differ. It calls
// begin with their number, and count for each. After an error the tree at dst is unusable.
func (p *Plan) Patch(
	ctx context.Context, objects *object.Store, dst string, links LinkPolicy, limits Limits, begin, count func(files int64),
) (files *Files, err error) {
	defer object.RecoverCorrupt(&err)
	old := OpenTree(dst, links)
	if old == nil {
		return nil, errNoManifest
	}
	before, known := objects.TreeOf(old.commit)
	if !known {
		return nil, errNoManifest
	}
	found, err := differences(ctx, objects, before, p.tree, limits.MaxTreeFiles)
	if err != nil {
		return nil, err
	}
	if links != LinksKeep && changesLinks(found) { // the others may lead elsewhere now
		return nil, errLinksChanged
	}
	to, err := disk.NewWalker(dst)
	if err != nil {
		return nil, buildError(err)
	}
	defer to.Close()
	for _, d := range found {
		if err := clearPath(to, d); err != nil {
			return nil, buildError(err)
		}
	}
	begin(int64(len(found)))
	files = &Files{}
	made := make(map[string]tracked, len(found))
	w := writer{objects: objects, links: links}
	for _, d := range found {
		count(1)
		if d.after.mode == 0 {
			continue
		}
		folder, err := to.Enter(disk.Parent(d.path), disk.Dir.OpenOrMake)
		if err != nil {
			return nil, buildError(err)
		}
		t, _, err := w.write(ctx, folder, entry{d.path, d.after.mode, d.after.hash}, path.Base(d.path))
		if err != nil {
			return nil, err
		}
		made[d.path] = t
		if !t.isSkipped() && t.mode != filemode.Submodule {
			files.Written = append(files.Written, d.path)
		}
	}
	files.Index = func() ([]byte, error) {
		content, bytes, err := patchManifest(GitDirOf(dst).Manifest(), found, made)
		if err == nil && limits.MaxFileBytes > math.MaxUint32 {
			bytes, err = bytesOf(dst, content)
		}
		if err == nil && bytes > limits.MaxTreeBytes {
			err = treeTooLarge(limits.MaxTreeBytes)
		}
		return content, err
	}
	return files, nil
}

// bytesOf returns the size of all files of a tree with this manifest, which has sizes modulo 2^32.
func bytesOf(tree string, manifest []byte) (bytes int64, err error) {
	in, err := disk.NewWalker(tree)
	if err != nil {
		return 0, buildError(err)
	}
	defer in.Close()
	count, err := countEntries(manifest)
	if err != nil {
		return 0, err
	}
	text := string(manifest[manifestHeader:])
	for range count {
		t, rest, ok := cutTracked(text)
		if !ok {
			return 0, ErrBadManifest
		}
		text = rest
		if t.mode == filemode.Submodule {
			continue
		}
		folder, err := in.Enter(disk.Parent(t.path), disk.Dir.Open)
		if err != nil {
			return 0, buildError(err)
		}
		st, err := folder.Stat(path.Base(t.path))
		if err != nil {
			return 0, buildError(err)
		}
		bytes += st.Size
	}
	return bytes, nil
}

// clearPath removes the old entry of a change, and parent folders that become empty. A changed file is removed, not
// overwritten, because other trees share it.
func clearPath(d *disk.Walker, change difference) error {
	if change.before.mode == 0 {
		return nil
	}
	folder, err := d.Enter(disk.Parent(change.path), disk.Dir.Open)
	if err != nil {
		return err
	}
	if err := folder.Remove(path.Base(change.path), change.before.mode == filemode.Submodule); err != nil {
		return err
	}
	if change.after.mode != 0 {
		return nil
	}
	for empty := d.Current; empty != ""; empty = disk.Parent(empty) {
		above, err := d.Enter(disk.Parent(empty), disk.Dir.Open)
		if err != nil {
			return err
		}
		switch err := above.Remove(path.Base(empty), true); {
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}
