package volume

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// publishedPath returns the full path of a published name, "acme/widgets" or "acme/widgets@ref".
func (v *Volume) publishedPath(name string) string {
	return filepath.Join(v.root, filepath.FromSlash(name))
}

// linkedTree returns the name of the tree that a published path links to, or "" if the path is not a link to
// one of this repository's trees. The tree may be missing.
func (v *Volume) linkedTree(f folder, path string) string {
	tree, _ := v.readLink(f, path)
	return tree
}

// readLink is linkedTree with an error.
func (v *Volume) readLink(f folder, path string) (tree string, err error) {
	target, err := os.Readlink(path)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOTDIR):
		return "", nil
	case err != nil:
		return "", err
	}
	if name := filepath.Base(target); target == linkTarget(f, path, name) {
		return name, nil
	}
	return "", nil
}

// linkTarget returns the relative target of a link from path to a tree; relative, so that the volume can be
// mounted anywhere.
func linkTarget(f folder, path, tree string) string {
	target, err := filepath.Rel(filepath.Dir(path), f.tree(tree))
	if err != nil {
		return f.tree(tree) // impossible: both are absolute
	}
	return target
}

// names returns the names to publish a ref under; the first is the one to report. The default branch gets the
// plain name, and keeps a suffixed name if it already has one. A former default branch keeps the plain name
// until another one is published.
func (v *Volume) names(f folder, b binding, t tip) []string {
	plain := b.Repo.String()
	suffixed := plain + "@" + t.Ref.Suffix()
	switch {
	case !t.IsDefault && t.Ref == b.Default:
		return []string{suffixed, plain}
	case !t.IsDefault:
		return []string{suffixed}
	case v.linkedTree(f, v.publishedPath(suffixed)) != "":
		return []string{plain, suffixed}
	}
	return []string{plain}
}

// links returns the published trees of the repository's refs by path, including those of a repository that has moved
// away, but not links to missing trees. It checks only the names that the existing trees can have, because
// the owner may have thousands of other repositories.
func (v *Volume) links(f folder, b binding) (map[string]string, error) {
	paths, err := v.treePaths(f, b)
	if err != nil {
		return v.allLinks(f, b)
	}
	return v.linksAt(f, paths)
}

// isLinked reports whether a tree of the repository is published.
func (v *Volume) isLinked(f folder, b binding, tree string) (bool, error) {
	ref, err := builtFor(checkout.GitDirOf(f.tree(tree)))
	if err != nil {
		links, err := v.allLinks(f, b)
		return slices.Contains(slices.Collect(maps.Values(links)), tree), err
	}
	plain := v.publishedPath(b.Repo.String())
	for _, path := range []string{plain, plain + "@" + ref.Suffix()} {
		now, err := v.readLink(f, path)
		if err != nil { // ignoring it would delete the tree
			return false, disk.Error("read a published name", err)
		}
		if now == tree {
			return true, nil
		}
	}
	return false, nil
}

// treePaths returns the paths that the existing trees can be published at.
func (v *Volume) treePaths(f folder, b binding) ([]string, error) {
	refs, err := f.refsOfTrees()
	if err != nil {
		return nil, err
	}
	plain := v.publishedPath(b.Repo.String())
	paths := []string{plain}
	for ref := range refs {
		paths = append(paths, plain+"@"+ref.Suffix())
	}
	return paths, nil
}

// allLinks is links including links to missing trees. It reads the owner's whole folder.
func (v *Volume) allLinks(f folder, b binding) (map[string]string, error) {
	plain := v.publishedPath(b.Repo.String())
	siblings, err := disk.ReadDir(filepath.Dir(plain))
	if err != nil {
		return nil, disk.Error("list published names", err)
	}
	var paths []string
	for _, sibling := range siblings {
		path := filepath.Join(filepath.Dir(plain), sibling.Name())
		if sibling.Type() == os.ModeSymlink && (path == plain || strings.HasPrefix(path, plain+"@")) {
			paths = append(paths, path)
		}
	}
	return v.linksAt(f, paths)
}

// linksAt returns the trees that the paths link to.
func (v *Volume) linksAt(f folder, paths []string) (map[string]string, error) {
	links := map[string]string{}
	for _, path := range paths {
		tree, err := v.readLink(f, path)
		if err != nil { // ignoring it would delete its tree
			return nil, disk.Error("read a published name", err)
		}
		if tree != "" {
			links[path] = tree
		}
	}
	return links, nil
}

// ownLinks is links without those of a repository that has moved away.
func (v *Volume) ownLinks(f folder, b binding) (map[string]string, error) {
	links, err := v.links(f, b)
	maps.DeleteFunc(links, func(_, tree string) bool { return b.MovedAway.covers(tree) })
	return links, err
}

// refsOfTrees returns the refs of the repository's trees, but for subtrees. It fails if a tree does not record its ref.
func (f folder) refsOfTrees() (map[events.Ref]bool, error) {
	trees, err := disk.ReadDir(f.trees())
	if err != nil {
		return nil, err
	}
	refs := map[events.Ref]bool{}
	for _, tree := range trees {
		if checkout.SelectionOf(tree.Name()) != "" {
			continue
		}
		ref, err := builtFor(checkout.GitDirOf(f.tree(tree.Name())))
		if err != nil {
			return nil, err
		}
		refs[ref] = true
	}
	return refs, nil
}

// flip links a published name to a tree with one rename. The caller holds the file lock.
func (v *Volume) flip(f folder, name, tree string, fence uint64) error {
	path := v.publishedPath(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return disk.Error("publish "+name, err)
	}
	target, temp := linkTarget(f, path, tree), f.flip(fence)
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return v.adopt(f, path, target, fence)
	}
	err := relink(path, target, temp)
	if errors.Is(err, os.ErrNotExist) { // another repository's holder has deleted the owner's folder, which was empty
		err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), relink(path, target, temp))
	}
	if err != nil {
		return disk.Error("publish "+name, err)
	}
	return disk.Error("publish "+name, disk.SyncPath(v.root, filepath.Dir(path)))
}

// relink makes path a link to the target with one rename, from the path temp.
func relink(path, target, temp string) error {
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// The relative target is valid at path, where the link is moved to.
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		// A network file system may report failure although the rename succeeded.
		if now, readErr := os.Readlink(path); readErr != nil || now != target {
			return err
		}
	}
	return nil
}
