package gitrepo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// quarantine is a bare repository of one fetch, whose objects nobody else sees until [quarantine.release].
type quarantine struct{ dir string }

// openQuarantine makes an empty quarantine at dir, in the place of one that may be there.
func openQuarantine(dir string) (quarantine, error) {
	if err := os.RemoveAll(dir); err != nil {
		return quarantine{}, volumeError("clear the quarantine", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "objects", "pack"), 0o755); err != nil {
		return quarantine{}, volumeError("make the quarantine", err)
	}
	return quarantine{dir}, nil
}

// index takes in a whole pack as it is, and writes the index that makes it readable.
func (q quarantine) index(ctx context.Context, cfg Config, g *gauge) error {
	r, err := q.openReceiver(ctx, cfg, g)
	if err != nil {
		return err
	}
	defer r.close()
	return r.receive()
}

// unpack takes in a thin pack, completed by what is read from the store: a small one's objects become
// files of their own, a large one stays a pack.
func (q quarantine) unpack(ctx context.Context, s store, cfg Config, g *gauge) error {
	r, err := q.openReceiver(ctx, cfg, g)
	if err != nil {
		return err
	}
	defer r.close()
	r.store = openObjects(s.dir)
	defer r.store.Close()
	r.loose = len(r.entries) <= maxLoose
	return r.receive()
}

func recoverCorrupt(err *error) {
	if cause := recover(); cause != nil {
		*err = corrupt("read the fetched pack: panic: %v", cause)
	}
}

// release moves the quarantine's objects into the store. They are named by their content, so it does
// not matter whether they are there already, nor who else is moving the same.
func (q quarantine) release(s store) error {
	attempt := "move fetched objects into the store"
	fetched, err := filepath.Glob(filepath.Join(q.dir, "objects", "*", "*"))
	if err == nil {
		err = flush(q.dir, fetched)
	}
	if err != nil {
		return volumeError(attempt, err)
	}
	var packs []string
	from, to := filepath.Join(q.dir, "objects"), filepath.Join(s.dir, "objects")
	groups, err := os.ReadDir(from)
	if err != nil {
		return volumeError(attempt, err)
	}
	for _, group := range groups {
		names, err := os.ReadDir(filepath.Join(from, group.Name()))
		if err != nil {
			return volumeError(attempt, err)
		}
		// No more than this folder: who removes the store meanwhile takes it away for good.
		if err := os.Mkdir(filepath.Join(to, group.Name()), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return volumeError(attempt, err)
		}
		for _, name := range names {
			path := filepath.Join(group.Name(), name.Name())
			switch {
			case strings.HasSuffix(path, ".pack"):
				packs = append(packs, path)
				continue
			case strings.HasPrefix(name.Name(), tempObject):
				continue
			}
			if err := os.Rename(filepath.Join(from, path), filepath.Join(to, path)); err != nil {
				return volumeError(attempt, err)
			}
		}
	}
	// A pack comes after its index: go-git takes a store for broken that has a pack without one,
	// while both it and Git overlook an index without its pack.
	for _, path := range packs {
		if err := os.Rename(filepath.Join(from, path), filepath.Join(to, path)); err != nil {
			return volumeError(attempt, err)
		}
	}
	return nil // a cut of power that undoes a move is healed by fetching again
}
