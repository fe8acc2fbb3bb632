package gitrepo

import (
	"cmp"
	"context"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"lockstep/events"
)

// changes lists files that differ between two commits, or all files of one.
type changes struct {
	base      string // the commit compared with; empty for none
	files     []events.File
	full      bool // base is not known: files lists the whole tree
	truncated bool
}

// changesSince compares the plan with the commit base, skipping folders of equal hash. A base that
// the store does not hold whole makes everything an addition.
func (p *plan) changesSince(ctx context.Context, objects *objects, base string, limit int) (changes, error) {
	c := changes{base: base}
	d := differ{objects: objects}
	switch {
	case base == "":
		d.addAll(p.root, "", events.FileAdded)
	case d.compareWith(base, p) != nil:
		d.files, c.full = nil, true
		d.addAll(p.root, "", events.FileAdded)
	}
	if ctx.Err() != nil {
		return changes{}, context.Cause(ctx)
	}
	slices.SortFunc(d.files, func(a, b events.File) int { return cmp.Compare(a.Path, b.Path) })
	if len(d.files) > limit {
		d.files, c.truncated = slices.Clone(d.files[:limit]), true
	}
	c.files = d.files
	return c, nil
}

type differ struct {
	objects *objects
	files   []events.File
}

func (d *differ) add(path string, status events.FileStatus) {
	d.files = append(d.files, events.File{Path: path, Status: status})
}

// addAll lists every file below a folder that is in the plan.
func (d *differ) addAll(nodes []node, prefix string, status events.FileStatus) {
	for _, n := range nodes {
		if n.mode == filemode.Dir {
			d.addAll(n.children, prefix+n.name+"/", status)
			continue
		}
		d.add(prefix+n.name, status)
	}
}

func (d *differ) compareWith(base string, p *plan) (err error) {
	defer recoverCorrupt(&err)
	if !plumbing.IsHash(base) {
		return errNoCommit
	}
	commit, err := d.objects.commit(plumbing.NewHash(base))
	if err != nil {
		return err
	}
	return d.compare(commit.TreeHash, p.tree, p.root, "")
}

// compare lists what differs between a folder of the base and the same folder in the plan.
func (d *differ) compare(before, after plumbing.Hash, nodes []node, prefix string) error {
	if before == after {
		return nil
	}
	entries, err := d.objects.tree(before)
	if err != nil {
		return err
	}
	old := make(map[string]object.TreeEntry, len(entries))
	for _, entry := range entries {
		old[entry.Name] = entry
	}
	for _, n := range nodes {
		was, existed := old[n.name]
		delete(old, n.name)
		if err := d.compareEntry(was, existed, n, prefix); err != nil {
			return err
		}
	}
	for _, gone := range old {
		if err := d.deleteAll(gone, prefix); err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) compareEntry(was object.TreeEntry, existed bool, n node, prefix string) error {
	path := prefix + n.name
	wasDir, isDir := existed && was.Mode == filemode.Dir, n.mode == filemode.Dir
	switch {
	case wasDir && isDir:
		return d.compare(was.Hash, n.hash, n.children, path+"/")
	case existed && wasDir == isDir:
		if was.Hash != n.hash || was.Mode != n.mode {
			d.add(path, events.FileModified)
		}
		return nil
	case existed:
		if err := d.deleteAll(was, prefix); err != nil {
			return err
		}
	}
	d.addAll([]node{n}, prefix, events.FileAdded)
	return nil
}

// deleteAll lists a file, or every file below a folder, as deleted.
func (d *differ) deleteAll(entry object.TreeEntry, prefix string) error {
	path := prefix + entry.Name
	if entry.Mode != filemode.Dir {
		d.add(path, events.FileDeleted)
		return nil
	}
	entries, err := d.objects.tree(entry.Hash)
	if err != nil {
		return err
	}
	for _, below := range entries {
		if err := d.deleteAll(below, path+"/"); err != nil {
			return err
		}
	}
	return nil
}
