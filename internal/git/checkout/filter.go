package checkout

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/git/object"
)

// Diff has the differences between two tree objects.
type Diff struct {
	found []difference
	links *Links // of the newer tree
}

// NewDiff compares two trees of at most limit files; before may be zero. parts are the submodules of the
// newer one. Missing objects are an error of ClassCorrupt.
func NewDiff(
	ctx context.Context, objects *object.Store, before, after object.ID, parts Parts, limit int,
) (d *Diff, err error) {
	defer object.RecoverCorrupt(&err)
	found, err := differences(ctx, objects, before, after, limit)
	if err != nil {
		return nil, err
	}
	return &Diff{found, parts.Links(objects, after)}, nil
}

// Paths returns the sorted paths of the files, links and submodules that differ.
func (d *Diff) Paths() []string {
	paths := make([]string, len(d.found))
	for i, f := range d.found {
		paths[i] = f.path
	}
	return paths
}

// Path returns the path with an index in Paths.
func (d *Diff) Path(index int32) string { return d.found[index].path }

// Files lists the differences at some of the paths, given by their ascending indexes.
func (d *Diff) Files(indexes []int32) ([]File, error) {
	found := make([]difference, len(indexes))
	for i, at := range indexes {
		found[i] = d.found[at]
	}
	files := listFiles(found)
	return files, markLinks(d.links, found, files)
}

// Selection is a place in a tree, from which files below it are selected, perhaps by several selections at once.
type Selection interface {
	IsSelected() bool                    // the file at the place, or everything below the folder, is selected
	By() []int32                         // by which selections; may have duplicates
	IsEnd() bool                         // nothing else below the place is selected
	Enter(name string) (below Selection) // nil if nothing at or below that name is selected
	Err() error                          // set if some of what Enter returned is wrong
}

// ErrManySelections means that several selections have too many files to be filtered together. Filter some at a time.
var ErrManySelections = errors.New("the selections have too many files")

const maxFiltered = 64 << 20 // bytes of folders that are held for several selections

// FilterTrees returns the ID that a tree object would have with the files of each selection only, as git
// write-tree names it. It omits selections that have none of the files. It reads each folder that the
// selections enter once, however many enter it. Its error may be ErrManySelections.
func FilterTrees(
	ctx context.Context, objects *object.Store, tree object.ID, at Selection,
) (ids map[int32]object.ID, err error) {
	defer object.RecoverCorrupt(&err)
	f := &treeFilter{ctx: ctx, objects: objects}
	ids, err = f.filter(tree, at, 0)
	return ids, cmp.Or(at.Err(), err)
}

type treeFilter struct {
	ctx     context.Context
	objects *object.Store
	held    int // bytes in filtered folders
}

// filter returns the IDs of a folder by selection.
func (f *treeFilter) filter(tree object.ID, at Selection, depth int) (map[int32]object.ID, error) {
	switch {
	case f.ctx.Err() != nil:
		return nil, context.Cause(f.ctx)
	case depth > maxDepth:
		return nil, object.Hostilef("folders nest deeper than %d", maxDepth)
	}
	entries, err := f.objects.Tree(tree)
	if err != nil {
		return nil, object.Corruptf("read a folder: %w", err)
	}
	held, folders := f.held, filtered{}
	for i, e := range entries {
		below := at.Enter(e.Name)
		if below == nil {
			continue
		}
		if below.IsSelected() {
			for _, selection := range below.By() {
				f.held += folders.add(selection, i, e)
			}
		}
		if e.Mode == filemode.Dir && !below.IsEnd() {
			ids, err := f.filter(e.Hash, below, depth+1)
			if err != nil {
				return nil, err
			}
			for selection, id := range ids {
				f.held += folders.add(selection, i, object.TreeEntry{Name: e.Name, Mode: e.Mode, Hash: id})
			}
		}
		if f.held > maxFiltered && len(folders) > 1 {
			return nil, ErrManySelections
		}
	}
	f.held = held
	return folders.ids(tree.Format()), nil
}

// filtered is a folder by selection.
type filtered map[int32]*filteredFolder

type filteredFolder struct {
	content []byte // as of a tree object
	last    int    // index of the last entry
}

// add adds an entry, the ith of the whole folder, unless the selection has it already. It returns by how many
// bytes the folder grew.
func (f filtered) add(selection int32, i int, e object.TreeEntry) int {
	folder := f[selection]
	if folder == nil {
		folder = &filteredFolder{last: -1}
		f[selection] = folder
	}
	if folder.last == i {
		return 0
	}
	folder.last = i
	before := len(folder.content)
	content := strconv.AppendUint(folder.content, uint64(e.Mode), 8)
	content = append(append(append(content, ' '), e.Name...), 0)
	folder.content = append(content, e.Hash.Bytes()...)
	return len(folder.content) - before
}

func (f filtered) ids(format object.Format) map[int32]object.ID {
	ids := make(map[int32]object.ID, len(f))
	for selection, folder := range f {
		ids[selection] = format.Hash(plumbing.TreeObject, folder.content)
	}
	return ids
}
