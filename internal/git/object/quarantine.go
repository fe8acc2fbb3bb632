package object

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lockstep/internal/disk"
)

// Quarantine is a bare repository of one fetch, whose objects nobody else sees until [quarantine.release].
type Quarantine struct{ Dir string }

// OpenQuarantine makes an empty quarantine at dir, in the place of one that may be there.
func OpenQuarantine(dir string) (Quarantine, error) {
	if err := os.RemoveAll(dir); err != nil {
		return Quarantine{}, disk.Error("clear the quarantine", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "objects", "pack"), 0o755); err != nil {
		return Quarantine{}, disk.Error("make the quarantine", err)
	}
	return Quarantine{dir}, nil
}

// Limits bounds what a fetched pack may cost.
type Limits struct {
	MaxFileBytes     int64         // in one file
	MaxInflatedBytes int64         // in all objects of the pack
	MaxTreeFiles     int           // bounds the number of objects
	FetchTimeout     time.Duration // of receiving the pack, once it is on disk
}

// Progress reports how far a pack has been received. Nil functions are not called.
type Progress struct {
	Begin func(objects int64) // the number of objects is known
	Count func(objects int64) // so many more have been received; called from several goroutines
}

// Index receives a complete pack as it is, and writes its index.
func (q Quarantine) Index(ctx context.Context, limits Limits, progress Progress) error {
	r, err := q.openReceiver(ctx, limits, progress)
	if err != nil {
		return err
	}
	defer r.close()
	return r.receive()
}

// Unpack receives a thin pack and completes it from the store, a bare repository: the objects of a small
// pack become loose files, a large one stays a pack.
func (q Quarantine) Unpack(ctx context.Context, store string, limits Limits, progress Progress) error {
	r, err := q.openReceiver(ctx, limits, progress)
	if err != nil {
		return err
	}
	defer r.close()
	r.store = Open(store)
	defer r.store.Close()
	r.loose = len(r.entries) <= maxLoose
	return r.receive()
}

// Release moves the quarantine's objects into the store, a bare repository. They are named by their content, so it does
// not matter whether they are there already, nor who else is moving the same.
func (q Quarantine) Release(store string) error {
	attempt := "move fetched objects into the store"
	fetched, err := filepath.Glob(filepath.Join(q.Dir, "objects", "*", "*"))
	if err == nil {
		err = disk.Flush(q.Dir, fetched)
	}
	if err != nil {
		return disk.Error(attempt, err)
	}
	var packs []string
	from, to := filepath.Join(q.Dir, "objects"), filepath.Join(store, "objects")
	groups, err := os.ReadDir(from)
	if err != nil {
		return disk.Error(attempt, err)
	}
	for _, group := range groups {
		names, err := os.ReadDir(filepath.Join(from, group.Name()))
		if err != nil {
			return disk.Error(attempt, err)
		}
		// No more than this folder: who removes the store meanwhile takes it away for good.
		if err := os.Mkdir(filepath.Join(to, group.Name()), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return disk.Error(attempt, err)
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
				return disk.Error(attempt, err)
			}
		}
	}
	// A pack comes after its index: go-git takes a store for broken that has a pack without one,
	// while both it and Git overlook an index without its pack.
	for _, path := range packs {
		if err := os.Rename(filepath.Join(from, path), filepath.Join(to, path)); err != nil {
			return disk.Error(attempt, err)
		}
	}
	return nil // a cut of power that undoes a move is healed by fetching again
}

// packPath is where the quarantine keeps the pack as it came.
func (q Quarantine) packPath() string { return filepath.Join(q.Dir, "fetched.pack") }

// CreatePack creates the file to write the fetched pack to. The errors of its Write and Close are of ClassVolume.
func (q Quarantine) CreatePack() (io.WriteCloser, error) {
	file, err := os.OpenFile(q.packPath(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, disk.Error("write the fetched pack", err)
	}
	return packFile{file}, nil
}

// packFile classifies the errors of a fetched pack's file.
type packFile struct{ file *os.File }

func (f packFile) Write(b []byte) (int, error) {
	n, err := f.file.Write(b)
	return n, disk.Error("write the fetched pack", err)
}

func (f packFile) Close() error { return disk.Error("write the fetched pack", f.file.Close()) }
