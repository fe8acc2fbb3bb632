package checkout

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/git"
	"lockstep/internal/git/object"
)

// Plan describes how to build a commit's tree from the last one. All new names and objects have been checked;
// names and objects of the last tree were checked when it was built.
type Plan struct {
	Commit      object.ID
	tree        object.ID
	last        *Tree        // nil for none
	incremental bool         // changed lists the differences from last, otherwise all files
	changed     []difference // sorted by path
	size        int          // number of files, without those of submodules

	sinceLast    []difference // differences from last, sorted by path, if comparesLast
	comparesLast bool         // last's objects are readable

	parts  Parts
	own    []difference    // changed without the files of submodules
	filled map[string]bool // paths of the submodules that have files; see SetParts

	large     Large                  // optional
	selects   string                 // see [GitDir.Large]
	converted func(path string) bool // optional; see SetLarge

	selection []Item // of a plan by Select; otherwise nil
}

// Tree is a published tree, whose files a new tree may share.
type Tree struct {
	path    string
	commit  object.ID
	size    int // number of files, without those of submodules
	inParts int // number of files of submodules
	links   LinkPolicy
	modes   *fileModes // of new files in a prepared tree, or nil
	large   string     // see [GitDir.Large]
	parts   Parts

	read func() (manifest, error) // returns the files; reads them once
}

// Size returns the number of files, without those of submodules.
func (p *Plan) Size() int { return p.size }

// Preload reads the list of files, which plans of other trees need.
func (t *Tree) Preload() { _, _ = t.read() }

// Path returns the path of the tree.
func (t *Tree) Path() string { return t.path }

// Links returns the policy with which the tree was built.
func (t *Tree) Links() LinkPolicy { return t.links }

// IsReadable reports whether the list of files is not damaged, without which a plan has no items.
func (t *Tree) IsReadable() bool {
	_, err := t.read()
	return err == nil
}

// entry is a file, link or submodule of a commit.
type entry struct {
	path   string
	mode   filemode.FileMode
	hash   object.ID
	inPart bool // it belongs to a submodule, at any depth
}

// Item is an entry to create, with the same entry of the last tree.
type Item struct {
	entry
	was tracked // same content and mode; zero if the last tree has no such file
}

// NewPlan plans the tree of the commit h, or of the commit that the tag h points to, with at most limit entries.
// The plan starts from last if its objects are readable. A missing object is an error of ClassCorrupt.
func NewPlan(ctx context.Context, objects *object.Store, h object.ID, last *Tree, limit int) (p *Plan, err error) {
	return NewSmallPlan(ctx, objects, h, last, limit, limit)
}

// NewSmallPlan is NewPlan if at most small entries differ from the last tree, or else an error of ClassQuota.
func NewSmallPlan(
	ctx context.Context, objects *object.Store, h object.ID, last *Tree, limit, small int,
) (p *Plan, err error) {
	defer object.RecoverCorrupt(&err)
	small = min(small, limit)
	commit, err := objects.Commit(h)
	switch {
	case errors.Is(err, object.ErrNoCommit):
		return nil, git.Errorf(git.Permanent, git.ClassNoRef, "%w but a tree or blob; use a branch or a tag of a commit", err)
	case err != nil:
		return nil, object.Corruptf("read commit: %w", err)
	}
	p = &Plan{Commit: commit.Hash, tree: commit.TreeHash, last: last}
	if last != nil {
		before, known := objects.TreeOf(last.commit)
		if known {
			p.changed, err = differences(ctx, objects, before, p.tree, small)
			p.incremental = err == nil
		}
	}
	if p.incremental {
		p.sinceLast, p.comparesLast = p.changed, true
		// A changed link can change where others lead, and the last tree lacks those that were skipped.
		p.incremental = last.links == LinksKeep || !changesLinks(p.changed)
	}
	if !p.incremental { // the objects of the last tree may be damaged
		if p.changed, err = differences(ctx, objects, object.ZeroID, p.tree, small); err != nil {
			return nil, fmt.Errorf("read the tree of %s: %w", commit.Hash, err)
		}
	}
	if err := p.check(objects, limit); err != nil {
		return nil, fmt.Errorf("read the tree of %s: %w", commit.Hash, err)
	}
	p.own = p.changed
	return p, nil
}

// check verifies that the blobs of all changed files are present, and that the tree, without the files of
// submodules, is within the file limit.
func (p *Plan) check(objects *object.Store, limit int) error {
	p.size = 0
	if p.incremental {
		p.size = p.last.size
	}
	p.size += growth(p.changed)
	if err := checkPresent(objects, p.changed); err != nil {
		return err
	}
	if p.size > limit {
		return TooManyFiles(limit)
	}
	return nil
}

// growth returns by how many entries a tree grows with differences.
func growth(found []difference) (entries int) {
	for _, d := range found {
		if d.before.mode != 0 {
			entries--
		}
		if d.after.mode != 0 {
			entries++
		}
	}
	return entries
}

// checkPresent verifies that the blobs of all changed files are present.
func checkPresent(objects *object.Store, found []difference) error {
	for _, d := range found {
		if d.after.mode == 0 || d.after.mode == filemode.Submodule {
			continue
		}
		present, err := objects.Has(d.after.hash)
		if err != nil {
			return object.Corruptf("%s: %w", d.path, err)
		}
		if !present {
			return object.Corruptf("%s: blob %s is missing", d.path, d.after.hash)
		}
	}
	return nil
}

// TooManyFiles returns the error of a tree with more files than the limit.
func TooManyFiles(limit int) error {
	return object.Quotaf("too many files: more than %d; raise max-tree-files in the setting limits if the repository "+
		"is meant to be that large", limit)
}

// Items lists all entries of the tree, sorted by path. It returns an error if the last tree's manifest is damaged.
func (p *Plan) Items() ([]Item, error) {
	if p.selection != nil {
		return p.selection, nil
	}
	var last manifest
	if p.last != nil {
		var err error
		if last, err = p.last.read(); err != nil {
			return nil, err
		}
	}
	items := make([]Item, 0, len(last)+len(p.changed))
	for _, d := range p.changed {
		for len(last) > 0 && last[0].path < d.path {
			if p.incremental {
				items = append(items, p.unchanged(last[0]))
			}
			last = last[1:]
		}
		it := Item{entry: entry{d.path, d.after.mode, d.after.hash, d.inPart}}
		if len(last) > 0 && last[0].path == d.path {
			if last[0].mode == it.mode && last[0].hash == it.hash && !p.converts(it.entry) {
				it.was = last[0]
			}
			last = last[1:]
		}
		if it.mode != 0 {
			items = append(items, it)
		}
	}
	if p.incremental {
		for _, t := range last {
			items = append(items, p.unchanged(t))
		}
	}
	return items, nil
}

func (p *Plan) unchanged(t tracked) Item {
	it := Item{entry{t.path, t.mode, t.hash, t.inPart}, t}
	if p.converts(it.entry) {
		it.was = tracked{}
	}
	return it
}

// difference is a path at which two trees differ.
type difference struct {
	path          string
	before, after side
	inPart        bool // after belongs to a submodule
}

// side is the entry of one of two trees at a path; a zero mode means none.
type side struct {
	mode filemode.FileMode
	hash object.ID
}

// walker compares two trees. It reads only folders that differ.
type walker struct {
	ctx     context.Context // of the comparison
	objects *object.Store
	limit   int // entries
	size    int // entries read
	files   int // of the newer tree
	bytes   int // in all paths
	inPart  bool
	found   []difference
}

const (
	maxDepth = 256       // nested folders; a build has two files open for each
	maxPath  = 4095      // bytes: PATH_MAX on Linux without the NUL
	maxPaths = 256 << 20 // bytes in all paths, which a build keeps in memory
	minPaths = 64 << 20  // whatever the limit of files is
)

// maxBytes returns how many bytes all paths may have with a limit of files.
func (w *walker) maxBytes() int { return max(minPaths, min(maxPaths, w.limit*300)) }

func (w *walker) compare(before, after object.ID, path string, depth int) error {
	switch {
	case before == after:
		return nil
	case w.ctx.Err() != nil:
		return context.Cause(w.ctx)
	case depth > maxDepth:
		return object.Hostilef("folders nest deeper than %d", maxDepth)
	}
	old, err := w.read(before, path)
	if err != nil {
		return err
	}
	entries, err := w.read(after, path)
	if err != nil {
		return err
	}
	was := make(map[string]side, len(old))
	for _, e := range old {
		was[e.Name] = side{e.Mode, e.Hash}
	}
	seen := make(map[string]bool, len(entries))
	for _, e := range entries {
		if err := w.checkEntry(e, path); err != nil {
			return err
		}
		if seen[e.Name] {
			return object.Hostilef("two entries named %q in folder %q", e.Name, path)
		}
		seen[e.Name] = true
		from := was[e.Name]
		delete(was, e.Name)
		if err := w.compareEntry(path+e.Name, from, side{e.Mode, e.Hash}, depth); err != nil {
			return err
		}
	}
	for name, from := range was {
		if err := w.compareEntry(path+name, from, side{}, depth); err != nil {
			return err
		}
	}
	return nil
}

// read returns the entries of a folder; none for the zero ID.
func (w *walker) read(tree object.ID, path string) ([]object.TreeEntry, error) {
	if tree.IsZero() {
		return nil, nil
	}
	entries, err := w.objects.Tree(tree)
	if err != nil {
		return nil, object.Corruptf("folder %q: %w", path, err)
	}
	if w.size += len(entries); w.size > 2*w.limit {
		return nil, TooManyFiles(w.limit)
	}
	return entries, nil
}

// checkEntry rejects an entry that cannot or must not be checked out.
func (w *walker) checkEntry(e object.TreeEntry, path string) error {
	if err := checkEntryName(e.Name, e.Mode); err != nil {
		return object.Hostilef("%w: %q in folder %q", err, e.Name, path)
	}
	length := len(path) + len(e.Name)
	w.bytes += length
	switch {
	case length > maxPath, w.bytes > maxPaths:
		return object.Hostilef("a path of %d bytes, or all paths of %d bytes, are too long to check out", length, w.bytes)
	case w.bytes > w.maxBytes():
		return TooManyFiles(w.limit)
	}
	return nil
}

// compareEntry compares the entries of two trees at a path. Like Git, it ignores empty folders.
func (w *walker) compareEntry(path string, before, after side, depth int) error {
	if before == after {
		return nil
	}
	var below [2]object.ID
	for i, s := range []*side{&before, &after} {
		if s.mode == filemode.Dir {
			below[i], *s = s.hash, side{}
		}
	}
	if after.mode != 0 {
		w.files++
	}
	if w.files > w.limit {
		return TooManyFiles(w.limit)
	}
	if before != after {
		w.found = append(w.found, difference{path, before, after, w.inPart})
	}
	return w.compare(below[0], below[1], path+"/", depth+1)
}
