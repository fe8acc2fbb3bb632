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

// published returns the tree that a name links to, relative to the root.
func (v volume) published(name string, repo events.RepoPath) (string, error) {
	target, err := v.dir.Readlink(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return "", ErrNotPublished
	case errors.Is(err, unix.EINVAL):
		return "", fmt.Errorf("%w: the path is a file or folder that Lockstep did not create", ErrNotPublished)
	case err != nil:
		return "", err
	}
	tree := path.Join(path.Dir(name), target)
	if path.IsAbs(target) || checkTreePath(tree, repo) != nil {
		return "", fmt.Errorf("%w: the path is a link that Lockstep did not create", ErrNotPublished)
	}
	return tree, nil
}

// checkTreePath refuses a path that is not a tree of this repository. It is relative to the root.
func checkTreePath(tree string, repo events.RepoPath) error {
	rest, ok := strings.CutPrefix(tree, ".lockstep/repos/")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 4 || parts[2] != "trees" || !isFolderOf(parts[0], parts[1], repo) || !isTreeName(parts[3]) {
		return fmt.Errorf("%.200q is not the path of a tree of %s", tree, repo)
	}
	return nil
}

// isTreeName accepts "{fence}-{commit}" and "{fence}-{subtree}", optionally followed by what distinguishes several.
// No other trees are published.
func isTreeName(name string) bool {
	return name != "" && strings.Trim(name, "0123456789abcdef-") == ""
}

// isFolderOf reports whether owner/name below .lockstep/repos is a repository's folder. Further slashes of its path are
// encoded as %2F; a name over 200 bytes is cut and ends in a hash.
func isFolderOf(owner, name string, repo events.RepoPath) bool {
	wantOwner, rest, _ := strings.Cut(repo.Key(), "/")
	want := strings.ReplaceAll(rest, "/", "%2F")
	if len(want) > 200 {
		return owner == wantOwner && strings.HasPrefix(name, want[:180]+"%") && !strings.Contains(name, "/")
	}
	return owner == wantOwner && name == want
}

// open opens and pins the tree at a path relative to the root.
func (v volume) open(tree string) (_ *Tree, err error) {
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
	if err := v.checkInPlace(t, tree); err != nil {
		return nil, err
	}
	if t.commit, err = t.line("lockstep-commit"); err != nil {
		return nil, err
	}
	ref, err := t.line("lockstep-ref")
	if errors.Is(err, ErrGone) { // marked as damaged; it stays published until a sync replaces it
		ref, err = t.line("lockstep-damaged")
	}
	if err != nil {
		return nil, err
	}
	t.ref, err = events.ParseRef(ref)
	return t, err
}

// pin acquires the shared lock of a tree.
func pin(dir *os.Root) (*os.File, error) {
	file, err := dir.Open(pinFile)
	if err != nil {
		return nil, fmt.Errorf("pin the tree: %w", goneIfMissing(err))
	}
	switch err := lockShared(file); {
	case err == nil:
		return file, nil
	case errors.Is(err, unix.EWOULDBLOCK): // the tree is being recycled
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

// checkInPlace returns ErrGone if the tree was recycled before it was pinned.
func (v volume) checkInPlace(t *Tree, tree string) error {
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

// line reads a one-line file in the tree's .git.
func (t *Tree) line(name string) (string, error) {
	content, err := t.dir.ReadFile(".git/" + name)
	if err != nil {
		return "", goneIfMissing(err)
	}
	return strings.TrimSpace(string(content)), nil
}
