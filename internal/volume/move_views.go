package volume

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
)

// buildViews links the trees of From's views to To, unless they are there.
func (m *mover) buildViews(ctx context.Context) error {
	all, err := m.v.allViewLinks(m.from, m.old)
	if err != nil {
		return err
	}
	w, building := m.to.views(), m.to.views().build(m.req.ToFence)
	if err := m.to.discard(building); err != nil {
		return err
	}
	if len(all) > 0 {
		if err := os.MkdirAll(w.trees(), 0o755); err != nil {
			return disk.Error("link the trees of views", err)
		}
	}
	for _, l := range all {
		if m.old.MovedAway.covers(l.Tree) {
			continue
		}
		links, err := l.trees(m.v, m.from, m.old)
		if err != nil {
			return err
		}
		for tree := range linkedTrees(links) {
			if _, err := os.Lstat(w.tree(tree)); err == nil {
				continue
			}
			copied, err := linkTree(ctx, m.from.views().tree(tree), filepath.Join(building, tree))
			if err == nil {
				err = disk.Flush(ctx, filepath.Join(building, tree), copied)
			}
			if err == nil {
				err = os.Rename(filepath.Join(building, tree), w.tree(tree))
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				return disk.Error("link the tree of a view", err)
			}
			m.v.done("view linked")
		}
		m.views = append(m.views, movedViews{l, links})
	}
	if len(m.views) == 0 {
		return nil
	}
	return disk.Error("link the trees of views", disk.FlushChanged(nil, []string{w.trees(), w.dir}))
}

// movedViews are links of views at From.
type movedViews struct {
	viewLinks
	links map[string]string
}

// flipViews publishes From's views at To. The next publication compares each with the tree at To. The caller
// holds the file lock of To.
func (m *mover) flipViews() error {
	w := m.to.views()
	for _, moved := range m.views {
		l := viewLinks{suffix: moved.suffix, app: moved.app}
		if known, err := viewLinksAt(m.to, m.at.binding, m.at.binding.Repo.String()+"@"+l.suffix, l.app); err != nil ||
			known.Tree != "" {
			if err != nil {
				return err
			}
			continue // published there since
		}
		if err := l.write(m.to, true); err != nil {
			return err
		}
		dir := l.folder(m.v, m.at.binding)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return disk.Error("publish the views", err)
		}
		for path, tree := range moved.links {
			at := filepath.Join(dir, filepath.Base(path))
			if err := relink(at, linkTarget(w, at, tree), m.to.flip(m.req.ToFence)); err != nil {
				return disk.Error("publish a view", err)
			}
		}
		if err := disk.SyncPath(m.v.root, dir); err != nil {
			return disk.Error("publish the views", err)
		}
	}
	return nil
}

// linkTree makes a tree with the same files at dst, and a .git with copies. It returns the paths of the copies.
func linkTree(ctx context.Context, tree, dst string) (copied []string, err error) {
	git := filepath.Join(tree, ".git") + string(filepath.Separator)
	err = filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		to := dst + strings.TrimPrefix(path, tree)
		if entry.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		if !strings.HasPrefix(path, git) {
			if err := os.Link(path, to); !errors.Is(err, unix.EMLINK) {
				return err
			}
		}
		copied = append(copied, to)
		return copyEntry(path, to, entry)
	})
	return copied, err
}

// copyEntry copies a file or symbolic link with its permissions.
func copyEntry(path, to string, entry fs.DirEntry) error {
	if entry.Type() == fs.ModeSymlink {
		target, err := os.Readlink(path)
		if err == nil {
			err = os.Symlink(target, to)
		}
		return err
	}
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	file, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	return errors.Join(err, file.Chmod(info.Mode().Perm()), file.Close())
}
