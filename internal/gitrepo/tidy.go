package gitrepo

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lockstep/events"
)

// tidy retires trees that no name links to any more, and clears away what is over: retired trees
// past their grace, stores that no tree needs, and what crashed or stale holders have left. It
// decides under the file lock, where everything not ours belongs to a lower fence; it deletes after.
func (v *Volume) tidy(ctx context.Context, f folder, repo events.RepoPath, fence uint64) error {
	err := f.guarded(ctx, fence, func() error {
		if err := f.sweep(); err != nil {
			return err
		}
		links, err := v.links(f, repo)
		if err != nil {
			return err
		}
		if err := f.retire(links, v.cfg.Grace); err != nil {
			return err
		}
		return f.dropStores()
	})
	if err != nil {
		return err
	}
	f.emptyTrash()
	return nil
}

// sweep throws away everything that is unfinished. Whoever made it is gone, or stale and will find
// that out; the caller has nothing unfinished of its own.
func (f folder) sweep() error {
	isTemp := func(name string) bool { return strings.Contains(name, tempInfix) }
	places := map[string]func(name string) bool{
		f.quarantines(): func(string) bool { return true },
		f.trees():       func(name string) bool { return strings.HasPrefix(name, buildPrefix) },
		f.dir:           func(name string) bool { return strings.HasPrefix(name, flipPrefix) || isTemp(name) },
	}
	generations, err := f.generations()
	if err != nil {
		return err
	}
	for _, n := range generations {
		places[f.generation(n).dir] = isTemp
	}
	for dir, leftover := range places {
		entries, err := readDir(dir)
		if err != nil {
			return volumeError("sweep", err)
		}
		for _, entry := range entries {
			if !leftover(entry.Name()) {
				continue
			}
			if err := f.discard(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// retire marks the trees that no link names, and throws away those marked for longer than grace.
func (f folder) retire(links map[string]string, grace time.Duration) error {
	linked := map[string]bool{}
	for _, tree := range links {
		linked[tree] = true
	}
	trees, err := readDir(f.trees())
	if err != nil {
		return volumeError("list the trees", err)
	}
	for _, tree := range trees {
		mark := f.mark(tree.Name())
		switch info, err := os.Lstat(mark); {
		case linked[tree.Name()]:
			err = os.Remove(mark)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return volumeError("unmark a tree in use", err)
			}
		case err != nil:
			if err := f.markRetired(mark); err != nil {
				return volumeError("retire a tree", err)
			}
		case time.Since(info.ModTime()) > grace:
			if err := f.discard(f.tree(tree.Name())); err != nil {
				return err
			}
		}
	}
	return f.dropMarks()
}

// dropMarks removes the marks of trees that are gone.
func (f folder) dropMarks() error {
	marks, err := readDir(f.retired())
	if err != nil {
		return volumeError("list the retired trees", err)
	}
	for _, mark := range marks {
		if _, err := os.Lstat(f.tree(mark.Name())); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := os.Remove(f.mark(mark.Name())); err != nil {
			return volumeError("drop a retired tree's mark", err)
		}
	}
	return nil
}

func (f folder) markRetired(mark string) error {
	if err := os.MkdirAll(f.retired(), 0o755); err != nil {
		return err
	}
	file, err := os.Create(mark)
	if err != nil {
		return err
	}
	return file.Close()
}

// dropStores throws away the older generations of the store that no tree reads from any more.
func (f folder) dropStores() error {
	generations, err := f.generations()
	if err != nil || len(generations) < 2 {
		return err
	}
	current, err := f.currentStore()
	if err != nil {
		return err
	}
	needed := map[string]bool{current.dir: true}
	trees, err := readDir(f.trees())
	if err != nil {
		return volumeError("list the trees", err)
	}
	for _, tree := range trees {
		store, err := gitDirOf(f.tree(tree.Name())).store()
		if err != nil {
			return nil // which one it needs cannot be told now: all stay until it can
		}
		needed[store] = true
	}
	for _, n := range generations {
		old := f.generation(n)
		if needed[old.dir] {
			continue
		}
		if err := f.discard(old.dir); err != nil {
			return err
		}
	}
	return nil
}

// discard moves a file or folder out of sight, to be deleted by emptyTrash.
func (f folder) discard(path string) error {
	if err := os.MkdirAll(f.trash(), 0o755); err != nil {
		return volumeError("throw away "+path, err)
	}
	err := os.Rename(path, filepath.Join(f.trash(), rand.Text()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return volumeError("throw away "+path, err)
}

// emptyTrash deletes what was thrown away. What resists stays for the next time.
func (f folder) emptyTrash() {
	entries, err := readDir(f.trash())
	if err != nil {
		return
	}
	for _, entry := range entries {
		_ = os.RemoveAll(filepath.Join(f.trash(), entry.Name()))
	}
}
