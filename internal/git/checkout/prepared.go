package checkout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/object"
)

// errNotPrepared means that a folder does not have the names of the tree that it was prepared from.
var errNotPrepared = errors.New("the prepared tree has missing or additional names")

// OpenPrepared opens the tree prepared at path, a private copy of the published tree last: it describes the files in
// path, and where to link them from if that copy is damaged. It returns nil as [OpenTree] does.
func OpenPrepared(path, last string, links LinkPolicy) *Tree {
	t := OpenTree(path, links)
	if t != nil {
		t.path, t.modes = last, readMark(GitDirOf(path))
	}
	return t
}

// markFile in the .git of a prepared tree records the modes of new files.
const markFile = "lockstep-prepared"

// MarkPrepared completes the .git of a prepared tree whose folders, and files that no other tree shares, are on disk.
func (f *Files) MarkPrepared(g GitDir) error {
	return os.WriteFile(filepath.Join(g.Dir, markFile),
		fmt.Appendf(nil, "%o %o\n", f.modes.regular, f.modes.executable), 0o644)
}

// readMark returns nil if there is none, or if it is damaged.
func readMark(g GitDir) *fileModes {
	content, err := readLine(filepath.Join(g.Dir, markFile))
	if err != nil {
		return nil
	}
	m := &fileModes{}
	if _, err := fmt.Sscanf(content, "%o %o", &m.regular, &m.executable); err != nil {
		return nil
	}
	return m
}

// Update turns dst, the prepared tree of the plan's last tree, into the plan's tree, apart from its .git.
// Like [Plan.Build], it shares no file that was modified since it was written. It applies the plan's changes,
// compares every other file by type, permissions, size, time and inode, replaces modified ones, and fails if
// there are other names. After an error the tree at dst is unusable.
func (p *Plan) Update(
	ctx context.Context, objects *object.Store, items []Item, dst string, links LinkPolicy, limits Limits,
	count func(files int64),
) (files *Files, err error) {
	defer object.RecoverCorrupt(&err)
	modes := p.last.modes
	if !p.incremental || p.converted != nil || modes == nil {
		return nil, errNotPrepared
	}
	if err := p.makeRoom(dst); err != nil {
		return nil, buildError(err)
	}
	b := &builder{
		writer: writer{
			objects: objects, format: p.Commit.Format(), links: links, large: p.large, filled: p.filled, modes: *modes,
		},
		prepared: true, maxBytes: limits.MaxTreeBytes, items: items, count: count,
	}
	made, written, err := b.build(ctx, dst, "")
	if err != nil {
		return nil, err
	}
	folders := foldersOf(made)
	folders[0].names++ // the .git
	if err := checkNames(ctx, dst, folders); err != nil {
		return nil, buildError(err)
	}
	return &Files{
		Written: written, Changed: p.changedFolders(folders, b.rewritten),
		made: made, modes: b.modes, format: b.format, large: p.selects, parts: p.parts,
	}, nil
}

// changedFolders returns which of a tree's folders are new or have new or removed names: by the plan, or
// because the entries at the paths in rewritten were created.
func (p *Plan) changedFolders(folders []namesIn, rewritten []string) []string {
	changed, touched := []string{}, map[string]bool{"": true} // the .git may have been replaced
	for _, path := range rewritten {
		touched[path], touched[disk.Parent(path)] = true, true // path is a folder if it is a submodule
	}
	for _, d := range p.changed {
		folder := disk.Parent(d.path)
		touched[folder] = true
		// folders may come or go with it
		for replaced := d.before.mode != 0 && d.after.mode != 0; !replaced && folder != ""; {
			folder = disk.Parent(folder)
			touched[folder] = true
		}
	}
	for _, f := range folders {
		if touched[f.folder] {
			changed = append(changed, f.folder)
		}
	}
	return changed
}

// makeRoom removes what the plan changes, and creates the folders of what it adds.
func (p *Plan) makeRoom(dst string) error {
	to, err := disk.NewWalker(dst)
	if err != nil {
		return err
	}
	defer to.Close()
	for _, d := range p.changed {
		if d.before.mode == filemode.Submodule {
			continue
		}
		if err := clearPath(to, d); err != nil {
			return err
		}
	}
	for _, d := range slices.Backward(p.changed) { // once they are empty, those within others first
		if d.before.mode != filemode.Submodule {
			continue
		}
		if err := clearPath(to, d); err != nil && !(p.filled[d.path] && errors.Is(err, unix.ENOTEMPTY)) {
			return err
		}
	}
	for _, d := range p.changed {
		if d.after.mode == 0 {
			continue
		}
		if _, err := to.Enter(disk.Parent(d.path), disk.Dir.OpenOrMake); err != nil {
			return err
		}
	}
	return nil
}

// clearPath removes the old entry of a change, and parent folders that become empty. A changed file is removed, not
// overwritten, because other trees share it.
func clearPath(d *disk.Walker, change difference) error {
	if change.before.mode == 0 {
		return nil
	}
	folder, err := d.Enter(disk.Parent(change.path), disk.Dir.Open)
	if errors.Is(err, os.ErrNotExist) && change.before.mode == filemode.Submodule {
		return nil // it went with the last file below it
	}
	if err != nil {
		return err
	}
	name := change.path[strings.LastIndexByte(change.path, '/')+1:]
	if err := folder.Remove(name, change.before.mode == filemode.Submodule); err != nil &&
		!errors.Is(err, os.ErrNotExist) {
		return err // a skipped link does not exist
	}
	if change.after.mode != 0 {
		return nil
	}
	for empty := d.Current; empty != ""; empty = disk.Parent(empty) {
		above, err := d.Enter(disk.Parent(empty), disk.Dir.Open)
		if err != nil {
			return err
		}
		switch err := above.Remove(empty[strings.LastIndexByte(empty, '/')+1:], true); {
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// namesIn is a folder with the number of names that it must have.
type namesIn struct {
	folder string
	names  int
}

// foldersOf returns the folders of a manifest in the order of their paths, submodules included.
func foldersOf(made manifest) []namesIn {
	folders := []namesIn{{"", 0}}
	open := []int{0} // indexes of the current folder and its parents
	for i, t := range made {
		if t.mode == filemode.Submodule && made[i+1:].hasBelow(t.path) {
			continue // a folder with files
		}
		for top := len(open) - 1; top > 0 && !strings.HasPrefix(t.path, folders[open[top]].folder+"/"); top-- {
			open = open[:top]
		}
		for {
			current := &folders[open[len(open)-1]]
			start := len(current.folder)
			if start > 0 {
				start++
			}
			slash := strings.IndexByte(t.path[start:], '/')
			current.names++
			if slash < 0 {
				break
			}
			open = append(open, len(folders))
			folders = append(folders, namesIn{t.path[:start+slash], 0})
		}
		if t.mode == filemode.Submodule {
			folders = append(folders, namesIn{t.path, 0})
		}
	}
	return folders
}

// checkNames returns errNotPrepared unless the folders of a tree have as many names as they must. The names
// of the manifest are known to exist.
func checkNames(ctx context.Context, dst string, folders []namesIn) error {
	g, ctx := errgroup.WithContext(ctx)
	for part := range inParts(folders) {
		g.Go(func() error {
			to, err := disk.NewWalker(dst)
			if err != nil {
				return err
			}
			defer to.Close()
			for _, f := range part {
				if ctx.Err() != nil {
					return stoppedBuild(ctx)
				}
				folder, err := to.Enter(f.folder, disk.Dir.Open)
				if err != nil {
					return err
				}
				names, err := folder.Count()
				if err != nil {
					return err
				}
				if names != f.names {
					return errNotPrepared
				}
			}
			return nil
		})
	}
	return g.Wait()
}
