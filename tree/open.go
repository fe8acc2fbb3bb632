package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"lockstep/events"
)

const pinFile = ".git/lockstep-pin"

// published returns the path of the tree that a name links to, relative to the root.
func (v volume) published(name string, repo events.RepoPath) (string, error) {
	target, err := v.dir.Readlink(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return "", ErrNotPublished
	case errors.Is(err, unix.EINVAL):
		return "", fmt.Errorf("%w: it is a file or a folder of somebody else's", ErrNotPublished)
	case err != nil:
		return "", err
	}
	tree := path.Join(path.Dir(name), target)
	if path.IsAbs(target) || checkTreePath(tree, repo) != nil {
		return "", fmt.Errorf("%w: it is a link of somebody else's", ErrNotPublished)
	}
	return tree, nil
}

// checkTreePath refuses whatever is not the path of a tree of this repository, relative to the root.
func checkTreePath(tree string, repo events.RepoPath) error {
	rest, ok := strings.CutPrefix(tree, ".lockstep/repos/")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 4 || parts[2] != "trees" || !isFolderOf(parts[0], parts[1], repo) || !isTreeName(parts[3]) {
		return fmt.Errorf("%.200q is not the path of a tree of %s", tree, repo)
	}
	return nil
}

// isTreeName accepts "{fence}-{commit}", perhaps with a number behind. Nothing else is ever published.
func isTreeName(name string) bool {
	return name != "" && strings.Trim(name, "0123456789abcdef-") == ""
}

// isFolderOf reports whether a repository is kept in the folder owner/name below .lockstep/repos. What
// follows the first slash of its path is joined by %2F; a name over 200 bytes ends in a hash instead.
func isFolderOf(owner, name string, repo events.RepoPath) bool {
	wantOwner, rest, _ := strings.Cut(repo.Key(), "/")
	want := strings.ReplaceAll(rest, "/", "%2F")
	if len(want) > 200 {
		return owner == wantOwner && strings.HasPrefix(name, want[:180]+"%") && !strings.Contains(name, "/")
	}
	return owner == wantOwner && name == want
}

// open opens and pins the tree at a path relative to the root. name is what may be linked to it.
func (v volume) open(tree, name string) (_ *Tree, err error) {
	t := &Tree{path: filepath.Join(v.path, filepath.FromSlash(tree))}
	if t.dir, err = v.dir.OpenRoot(tree); err != nil {
		return nil, goneIfMissing(err)
	}
	defer func() {
		if err != nil {
			_ = t.Close()
		}
	}()
	if t.pin, err = pin(t.dir); err != nil {
		return nil, err
	}
	if err := v.checkInPlace(t, tree, name); err != nil {
		return nil, err
	}
	t.commit, err = t.line("lockstep-commit")
	if errors.Is(err, ErrGone) { // an earlier version's, which had one commit and no such file
		t.commit, err = t.line("shallow")
	}
	if err != nil {
		return nil, err
	}
	ref, err := t.line("lockstep-ref")
	if errors.Is(err, ErrGone) { // it was found damaged, and is published until a sync has made another
		ref, err = t.line("lockstep-damaged")
	}
	if err != nil {
		return nil, err
	}
	t.ref, err = events.ParseRef(ref)
	return t, err
}

// pin takes the shared lock of a tree; nil when the tree has no file to lock.
func pin(dir *os.Root) (*os.File, error) {
	file, err := dir.Open(pinFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pin the tree: %w", err)
	}
	switch err := lockShared(file); {
	case err == nil:
		return file, nil
	case errors.Is(err, unix.EWOULDBLOCK): // it is being recycled
		err = ErrGone
		fallthrough
	default:
		_ = file.Close()
		return nil, fmt.Errorf("pin the tree: %w", err)
	}
}

func lockShared(file *os.File) error {
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// checkInPlace makes sure that the tree was still in its place when it was pinned, or, for a tree that
// cannot be pinned, that the name links to it.
func (v volume) checkInPlace(t *Tree, tree, name string) error {
	if t.pin == nil {
		target, err := v.dir.Readlink(name)
		if err != nil || path.Join(path.Dir(name), target) != tree {
			return fmt.Errorf("%w, or about to be: it was replaced, and cannot be pinned because an earlier version of Lockstep built it", ErrGone)
		}
		return nil
	}
	locked, err := t.pin.Stat()
	if err != nil {
		return err
	}
	there, err := v.dir.Stat(tree + "/" + pinFile)
	if err != nil {
		return goneIfMissing(err)
	}
	if !os.SameFile(locked, there) {
		return ErrGone
	}
	return nil
}

func goneIfMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESTALE) {
		return ErrGone
	}
	return err
}

// line reads a file of one line in the tree's .git.
func (t *Tree) line(name string) (string, error) {
	content, err := t.dir.ReadFile(".git/" + name)
	if err != nil {
		return "", goneIfMissing(err) // a tree without a pin may go at any time
	}
	return strings.TrimSpace(string(content)), nil
}
