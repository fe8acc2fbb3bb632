package gitrepo

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"lockstep/events"
)

// publishedPath returns the full path of a published name, "acme/widgets" or "acme/widgets@ref".
func (v *Volume) publishedPath(name string) string {
	return filepath.Join(v.root, filepath.FromSlash(name))
}

// linkedTree returns the name of the tree that a published path links to, or "" when the path is
// anything but a link to one of this repository's trees, there or not.
func (v *Volume) linkedTree(f folder, path string) string {
	tree, _ := v.readLink(f, path)
	return tree
}

// readLink is linkedTree, with the error that kept it from finding out.
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

// linkTarget is what the link at path says to name a tree: relative, so that the volume may be
// mounted anywhere.
func linkTarget(f folder, path, tree string) string {
	target, err := filepath.Rel(filepath.Dir(path), f.tree(tree))
	if err != nil {
		return f.tree(tree) // cannot be: both are absolute
	}
	return target
}

// names returns the names to publish a ref under; the first is the one to tell of. The default
// branch has the plain name. It keeps the name it may have had before it was the default.
func (v *Volume) names(f folder, b binding, t tip) []string {
	plain := b.Repo.String()
	suffixed := plain + "@" + t.ref.Suffix()
	switch {
	case !t.isDefault:
		return []string{suffixed}
	case v.linkedTree(f, v.publishedPath(suffixed)) != "":
		return []string{plain, suffixed}
	}
	return []string{plain}
}

// links returns the trees that the repository's published names link to, by path.
func (v *Volume) links(f folder, repo events.RepoPath) (map[string]string, error) {
	plain := v.publishedPath(repo.String())
	siblings, err := readDir(filepath.Dir(plain))
	if err != nil {
		return nil, volumeError("list what is published", err)
	}
	links := map[string]string{}
	for _, sibling := range siblings {
		path := filepath.Join(filepath.Dir(plain), sibling.Name())
		if sibling.Type() != os.ModeSymlink || !isNameOf(path, plain) {
			continue
		}
		tree, err := v.readLink(f, path)
		if err != nil { // taken for no link of ours, its tree would be deleted
			return nil, volumeError("look at what is published", err)
		}
		if tree != "" {
			links[path] = tree
		}
	}
	return links, nil
}

func isNameOf(path, plain string) bool {
	return path == plain || len(path) > len(plain) && path[:len(plain)] == plain && path[len(plain)] == '@'
}

// flip makes a published name link to a tree, in one rename. The caller holds the file lock.
func (v *Volume) flip(f folder, name, tree string, fence uint64) error {
	path := v.publishedPath(name)
	if err := v.makeOwner(path); err != nil {
		return volumeError("publish "+name, err)
	}
	target, temp := linkTarget(f, path, tree), f.flip(fence)
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return v.adopt(f, path, target, fence)
	}
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return volumeError("publish "+name, err)
	}
	// The link is made out of sight. What it says holds at the place it is moved to.
	if err := os.Symlink(target, temp); err != nil {
		return volumeError("publish "+name, err)
	}
	if err := os.Rename(temp, path); err != nil {
		// Over a network a rename may be done and yet reported as failed.
		if now, readErr := os.Readlink(path); readErr != nil || now != target {
			return volumeError("publish "+name, err)
		}
	}
	return volumeError("publish "+name, syncDir(filepath.Dir(path)))
}

// makeOwner makes the folders that a published name stands in.
func (v *Volume) makeOwner(path string) error {
	owner := filepath.Dir(path)
	if _, err := os.Stat(owner); err == nil {
		return nil
	}
	if err := os.MkdirAll(owner, 0o755); err != nil {
		return err
	}
	for dir := filepath.Dir(owner); len(dir) >= len(v.root); dir = filepath.Dir(dir) {
		if err := syncDir(dir); err != nil {
			return err
		}
	}
	return nil
}
