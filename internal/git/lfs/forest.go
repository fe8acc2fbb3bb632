package lfs

import (
	"strings"
	"sync"

	"lockstep/internal/git/object"
	"lockstep/internal/git/wildmatch"
)

// Forest knows which files of a tree and of its submodules are in LFS and selected. Each of these trees has
// its own attributes and .lfsconfig; the globs of the selection match paths from the top. It is safe for
// concurrent use if nothing else uses its objects.
type Forest struct {
	mu        sync.Mutex
	objects   Objects
	selection Selection
	match     *wildmatch.Matcher   // its limit is that of all trees together
	trees     map[string]object.ID // by folder, with a slash at the end; "" is the top
	used      map[string]*attributed
}

// NewForest returns a Forest of trees by the path of their folder, "" for the top.
func NewForest(objects Objects, trees map[string]object.ID, selection Selection) *Forest {
	f := &Forest{
		objects: objects, selection: selection, match: &wildmatch.Matcher{}, trees: map[string]object.ID{},
		used: map[string]*attributed{},
	}
	for folder, tree := range trees {
		if folder != "" {
			folder += "/"
		}
		f.trees[folder] = tree
	}
	return f
}

// FolderOf returns the folder of the tree that a path belongs to.
func (f *Forest) FolderOf(path string) string { return strings.TrimSuffix(f.folderOf(path), "/") }

func (f *Forest) folderOf(path string) string {
	if len(f.trees) == 1 {
		return ""
	}
	for end := strings.LastIndexByte(path, '/'); end >= 0; end = strings.LastIndexByte(path[:end], '/') {
		if _, ok := f.trees[path[:end+1]]; ok {
			return path[:end+1]
		}
	}
	return ""
}

// of returns the tree that a path belongs to, and the path in it. The caller holds mu.
func (f *Forest) of(path string) (tree *attributed, in string, err error) {
	folder := f.folderOf(path)
	tree, ok := f.used[folder]
	if !ok {
		tree = &attributed{objects: f.objects, selection: f.selection, match: f.match, folder: folder}
		if err := tree.open(f.trees[folder]); err != nil {
			return nil, "", err
		}
		f.used[folder] = tree
	}
	return tree, path[len(folder):], nil
}

// Config returns the .lfsconfig of the tree at a folder.
func (f *Forest) Config(folder string) (Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	tree, _, err := f.of(strings.TrimPrefix(folder+"/x", "/"))
	if err != nil {
		return Config{}, err
	}
	return tree.config, nil
}

// Selects reports whether the file at path is fetched if its blob is a pointer.
func (f *Forest) Selects(path string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.selects(path)
}

// Pointer returns the pointer that the file at path has as its blob. It returns false if the file is not in
// LFS, or is not selected.
func (f *Forest) Pointer(path string, blob object.ID) (Pointer, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if selected, err := f.selects(path); err != nil || !selected {
		return Pointer{}, false, err
	}
	return ReadPointer(f.objects, blob)
}

func (f *Forest) selects(path string) (bool, error) {
	tree, in, err := f.of(path)
	if err != nil {
		return false, err
	}
	return tree.selects(in)
}
