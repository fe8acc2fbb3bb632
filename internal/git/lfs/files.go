package lfs

import (
	"errors"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/git/object"
	"lockstep/internal/git/wildmatch"
)

// Objects reads the objects of a repository.
type Objects interface {
	Tree(tree object.ID) ([]object.TreeEntry, error)
	// SmallBlob returns the content of a blob of at most limit bytes; ok is false if it is larger.
	SmallBlob(blob object.ID, limit int64) (content []byte, ok bool, err error)
}

// attributed is one tree of a [Forest], whose mutex guards it.
type attributed struct {
	config    Config
	selection Selection
	objects   Objects
	match     *wildmatch.Matcher
	folder    string  // of the tree, with a slash at the end; "" for the top
	stack     []frame // the folders of the last path, from the top
}

// frame is a folder.
type frame struct {
	folderRules
	entries []object.TreeEntry
	folders []object.TreeEntry // those of the entries that are folders, sorted by name; nil until needed
}

// folder returns the ID of a subfolder.
func (f *frame) folder(name string) (id object.ID, ok bool) {
	if f.folders == nil {
		f.folders = slices.DeleteFunc(slices.Clone(f.entries), func(e object.TreeEntry) bool {
			return e.Mode != filemode.Dir
		})
		slices.SortFunc(f.folders, func(a, b object.TreeEntry) int { return strings.Compare(a.Name, b.Name) })
	}
	i, ok := slices.BinarySearchFunc(f.folders, name, func(e object.TreeEntry, name string) int {
		return strings.Compare(e.Name, name)
	})
	if !ok {
		return object.ZeroID, false
	}
	return f.folders[i].Hash, true
}

const attributesName = ".gitattributes"

// open reads the .lfsconfig, unless the selection is zero.
func (f *attributed) open(tree object.ID) error {
	if len(f.selection) == 0 {
		return nil
	}
	if err := f.enter(tree, ""); err != nil {
		return err
	}
	content, err := f.read(f.stack[0].entries, configName, maxConfig)
	if err != nil {
		return err
	}
	f.config = parseConfig(content)
	return nil
}

// Decides reports whether a file with this path decides which files are in LFS and selected, or where they are.
func Decides(path string) bool {
	return path == configName || path == attributesName || strings.HasSuffix(path, "/"+attributesName)
}

// MayDecide is like Decides, for files in submodules. It also returns true for a .lfsconfig below the top,
// which has no effect.
func MayDecide(path string) bool {
	return Decides(path) || strings.HasSuffix(path, "/"+configName)
}

func (f *attributed) selects(path string) (bool, error) {
	if len(f.selection) == 0 {
		return false, nil
	}
	if err := f.goTo(path); err != nil {
		return false, err
	}
	stack := make([]folderRules, len(f.stack))
	for i, folder := range f.stack {
		stack[i] = folder.folderRules
	}
	selected := isLFS(f.match, path, stack) && f.selection.selects(f.match, f.config, f.folder, path)
	if err := f.checkCost(); err != nil {
		return false, err
	}
	return selected, nil
}

// ReadPointer returns the pointer that a blob is; ok is false if it is none.
func ReadPointer(objects Objects, blob object.ID) (p Pointer, ok bool, err error) {
	defer object.RecoverCorrupt(&err)
	content, small, err := objects.SmallBlob(blob, maxPointer-1)
	if err != nil || !small {
		return Pointer{}, false, err
	}
	p, ok = ParsePointer(content)
	return p, ok, nil
}

// goTo reads the attributes of the folders above path. Visiting paths in order reads each folder once.
func (f *attributed) goTo(path string) error {
	keep := 1
	for keep < len(f.stack) && strings.HasPrefix(path, f.stack[keep].path) {
		keep++
	}
	f.stack = f.stack[:keep]
	for {
		top := &f.stack[len(f.stack)-1]
		name, _, inFolder := strings.Cut(path[len(top.path):], "/")
		if !inFolder {
			return nil
		}
		tree, ok := top.folder(name)
		if !ok {
			return object.Corruptf("folder %q is not in the tree", top.path+name)
		}
		if err := f.enter(tree, top.path+name+"/"); err != nil {
			return err
		}
	}
}

// enter adds a folder to the stack.
func (f *attributed) enter(tree object.ID, path string) error {
	entries, err := f.objects.Tree(tree)
	if err != nil {
		return object.Corruptf("folder %q: %w", path, err)
	}
	content, err := f.read(entries, attributesName, maxAttributes)
	if err != nil {
		return err
	}
	f.match.Steps += parseSteps * len(content)
	f.stack = append(f.stack, frame{folderRules: folderRules{parseRules(content), path}, entries: entries})
	return f.checkCost()
}

var errTooComplex = errors.New("its .gitattributes or .lfsconfig take too long to match")

// checkCost returns an error once matching the patterns of the tree has taken too long.
func (f *attributed) checkCost() error {
	if f.match.IsExhausted() {
		return object.Hostilef("%w", errTooComplex)
	}
	return nil
}

// read returns the content of a file in a folder; nil if there is none, it is too long or not a regular file.
func (f *attributed) read(entries []object.TreeEntry, name string, limit int64) ([]byte, error) {
	i := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == name })
	if i < 0 || entries[i].Mode&0o170000 != filemode.Regular&0o170000 { // also of an unusual mode, as 100664
		return nil, nil
	}
	content, ok, err := f.objects.SmallBlob(entries[i].Hash, limit)
	if err != nil || !ok {
		return nil, err
	}
	return slices.Clone(content), nil
}
