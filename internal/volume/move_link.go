package volume

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
)

// carried returns the paths, besides the stores, that a repository leaves when it moves. Another one at its
// path must not find it: it could name objects that it has no access to.
func (f folder) carried() []string { return []string{f.lfs(), f.parts(), f.listed()} }

// carry links what is needed of the paths of From to their places at To, as far as it is missing there.
func (m *mover) carry(ctx context.Context) error {
	err := m.to.guarded(ctx, m.req.ToFence, func() error {
		_, err := linkAll(ctx, m.from.dir, lfsObjects(m.from), lfsObjects(m.to)) // which are hashed before they are used
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return disk.Error("link the LFS objects", err)
	}
	paths, err := m.from.listParts()
	if err != nil {
		return err
	}
	for _, path := range append(paths, m.from.listed()) {
		place := m.to.dir + strings.TrimPrefix(path, m.from.dir)
		_, err := os.Lstat(path)
		_, free := os.Lstat(place)
		if err != nil || free == nil { // the store of a submodule is complete
			continue
		}
		if err := m.linkTo(ctx, path, place); err != nil {
			return err
		}
	}
	return nil
}

func lfsObjects(f folder) string { return filepath.Join(f.lfs(), "objects") }

// linkStores links to To those of From's stores that the trees of refs use, and the current one, which stays the
// newest.
func (m *mover) linkStores(ctx context.Context, refs []events.Ref) error {
	current, err := m.from.currentStore(m.old.MovedAway)
	if err != nil {
		return err
	}
	used := []int{current.number()}
	for _, ref := range refs {
		used = append(used, m.from.generationOf(m.published.Trees[ref]))
	}
	slices.Sort(used)
	for _, n := range slices.Compact(used) {
		theirs := m.from.generation(n)
		if n <= m.old.MovedAway.lastStore() || !theirs.isBegun() {
			continue
		}
		if m.stores[n], err = m.linkStore(ctx, theirs); err != nil {
			return err
		}
	}
	return nil
}

// linkStore links one of From's stores to To, unless a store there has the same commits, like one linked before. The
// newest of these is used, once: a store may have been replaced because it was damaged.
func (m *mover) linkStore(ctx context.Context, theirs store) (store, error) {
	wanted, err := theirs.refs()
	if err != nil {
		return store{}, err
	}
	generations, err := m.to.generations()
	if err != nil {
		return store{}, err
	}
	taken := slices.Collect(maps.Values(m.stores))
	for _, n := range slices.Backward(generations) {
		s := m.to.generation(n)
		refs, err := s.refs()
		if err != nil {
			return store{}, err
		}
		if n > m.binding.MovedAway.lastStore() && maps.Equal(refs, wanted) && s.isPurged() == theirs.isPurged() &&
			slices.Equal(s.shallow(), theirs.shallow()) && !slices.Contains(taken, s) {
			return s, nil
		}
	}
	place, err := m.to.nextStore(m.binding.MovedAway)
	if err != nil {
		return store{}, err
	}
	return place, m.linkTo(ctx, theirs.dir, place.dir)
}

// linkTo links a file or folder of From to a place at To: in quarantine first, then with one rename.
func (m *mover) linkTo(ctx context.Context, path, place string) error {
	temp := filepath.Join(m.to.quarantine(m.req.ToFence), filepath.Base(place))
	err := errors.Join(os.RemoveAll(temp), os.MkdirAll(filepath.Dir(temp), 0o755))
	if err == nil {
		var copied []string
		if copied, err = linkAll(ctx, m.from.dir, path, temp); err == nil {
			err = disk.Flush(ctx, temp, copied)
		}
	}
	if err != nil {
		return disk.Error("link "+path, err)
	}
	return m.to.guarded(ctx, m.req.ToFence, func() error {
		// A newer holder of From may have pruned objects before they were linked.
		if err := m.from.checkFence(m.req.Fence); err != nil {
			return err
		}
		err := os.MkdirAll(filepath.Dir(place), 0o755)
		if err == nil {
			err = os.Rename(temp, place)
		}
		if err == nil {
			err = disk.SyncPath(m.v.root, filepath.Dir(place))
		}
		return disk.Error("link "+path, err)
	})
}

// linkAll links a file or folder below base to dst. What is below a folder "objects" never changes, and becomes hard
// links as far as the file system allows; all else is copied. What exists stays. It returns the paths of the copies.
func linkAll(ctx context.Context, base, path, dst string) (copied []string, err error) {
	err = filepath.WalkDir(path, func(at string, entry fs.DirEntry, err error) error {
		if err = errors.Join(err, context.Cause(ctx)); err != nil {
			return err
		}
		to := dst + strings.TrimPrefix(at, path)
		switch {
		case entry.IsDir():
			return os.MkdirAll(to, 0o755)
		case !entry.Type().IsRegular(), strings.Contains(entry.Name(), disk.TempInfix):
			return nil
		case strings.Contains(strings.TrimPrefix(at, base), "/objects/"):
			if err := os.Link(at, to); !errors.Is(err, unix.EMLINK) {
				return ignoreExisting(err)
			}
		}
		copied = append(copied, to)
		return ignoreExisting(disk.Copy(at, to))
	})
	return copied, err
}

func ignoreExisting(err error) error {
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}
