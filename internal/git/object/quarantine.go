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

// Quarantine is a bare repository that receives one fetch. Its objects are private until [Quarantine.Release].
type Quarantine struct {
	Dir    string
	Format Format // of the fetched pack
	Kept   *Kept  // see [Quarantine.Index]; optional
}

// OpenQuarantine creates an empty quarantine at dir and removes any previous one.
func OpenQuarantine(dir string) (Quarantine, error) {
	if err := os.RemoveAll(dir); err != nil {
		return Quarantine{}, disk.Error("clear the quarantine", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "objects", "pack"), 0o755); err != nil {
		return Quarantine{}, disk.Error("create the quarantine", err)
	}
	return Quarantine{Dir: dir}, nil
}

// Limits bounds the resources that a fetched pack may use.
type Limits struct {
	MaxFileBytes     int64         // in one file
	MaxInflatedBytes int64         // in all objects of the pack
	MaxTreeFiles     int           // bounds the number of objects
	FetchTimeout     time.Duration // for reading and checking the pack once it is on disk
}

// Progress reports the progress of receiving a pack. Nil functions are not called.
type Progress struct {
	Begin func(objects int64) // called once with the number of objects
	Count func(objects int64) // called with the number of newly received objects, by several goroutines
}

// Index receives a complete pack and writes its index. Kept gets some of its blobs.
func (q Quarantine) Index(ctx context.Context, limits Limits, progress Progress) error {
	r, err := q.openReceiver(ctx, limits, progress)
	if err != nil {
		return err
	}
	defer r.close()
	return r.receive()
}

// Unpack receives a thin pack and completes it from the store, a bare repository. The objects of a small pack
// become loose files; a large one stays a pack.
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

// Release moves the quarantine's objects into the store, a bare repository. Objects are named by their content, so
// the store may already have them, and concurrent releases may move the same objects. The objects are on disk
// before the store has them, and their names as [disk.Flush] says.
func (q Quarantine) Release(store string) (err error) {
	defer func() { err = disk.Error("move fetched objects into the store", err) }()
	fetched, err := disk.Glob(q.Dir, "objects/*/*")
	if err != nil {
		return err
	}
	if err := disk.FlushChanged(fetched, nil); err != nil {
		return err
	}
	changed, err := q.release(store)
	if err != nil {
		return err
	}
	return disk.FlushChanged(nil, changed)
}

// release moves the objects and returns the folders of the store that have new names.
func (q Quarantine) release(store string) (changed []string, err error) {
	var packs []string
	from, to := filepath.Join(q.Dir, "objects"), filepath.Join(store, "objects")
	groups, err := os.ReadDir(from)
	if err != nil {
		return nil, err
	}
	changed = []string{to}
	for _, group := range groups {
		names, err := os.ReadDir(filepath.Join(from, group.Name()))
		if err != nil {
			return nil, err
		}
		if len(names) == 0 {
			continue
		}
		// Not MkdirAll, which would re-create a store that is being removed.
		if err := os.Mkdir(filepath.Join(to, group.Name()), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		changed = append(changed, filepath.Join(to, group.Name()))
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
				return nil, err
			}
		}
	}
	// A pack is moved after its index: [Store] fails on a pack without an index, and ignores an index without
	// a pack, as Git does.
	for _, path := range packs {
		if err := os.Rename(filepath.Join(from, path), filepath.Join(to, path)); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

// packPath returns the path of the fetched pack.
func (q Quarantine) packPath() string { return filepath.Join(q.Dir, "fetched.pack") }

// CreatePack creates the file for the fetched pack. Its Write and Close return errors of ClassVolume.
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
