package lfs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/object"
)

// Store keeps the objects of a repository, each once, in a folder:
//
//	objects/{ab}/{cd}/{oid}     an object, with the permissions of a file; trees have hard links to it
//	objects/{ab}/{cd}/{oid}+x   the same with the permissions of an executable, if a tree has one
//	incoming/{fence}/{oid}      a download that is not complete
//
// A reader of a tree may have written to the file that it shares with the store, so an object that another
// process or an earlier sync has stored is hashed before it is used.
type Store struct {
	Dir   string
	Fence uint64

	mu       sync.Mutex
	verified map[string]bool // paths of objects known to be as their names say
}

func (s *Store) path(oid OID) string {
	name := oid.String()
	return filepath.Join(s.objects(), name[:2], name[2:4], name)
}

const executableSuffix = "+x"

func (s *Store) objects() string   { return filepath.Join(s.Dir, "objects") }
func (s *Store) incomings() string { return filepath.Join(s.Dir, "incoming") }
func (s *Store) incoming() string {
	return filepath.Join(s.incomings(), strconv.FormatUint(s.Fence, 10))
}

// Has reports whether the store has an object, with its content. It removes one that is damaged.
func (s *Store) Has(ctx context.Context, p Pointer) (bool, error) {
	return s.has(ctx, s.path(p.OID), p)
}

func (s *Store) has(ctx context.Context, path string, p Pointer) (bool, error) {
	if s.isVerified(path) {
		return true, nil
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, disk.Error("read an LFS object", err)
	}
	defer file.Close()
	hasher := sha256.New()
	size, err := io.Copy(object.CancelWriter{Ctx: ctx, Writer: hasher}, io.LimitReader(file, p.Size+1))
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case err != nil:
		return false, disk.Error("read an LFS object", err)
	case size != p.Size || OID(hasher.Sum(nil)) != p.OID:
		return false, disk.Error("remove a damaged LFS object", os.Remove(path))
	}
	s.setVerified(path)
	return true, nil
}

func (s *Store) isVerified(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.verified[path]
}

func (s *Store) setVerified(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.verified == nil {
		s.verified = map[string]bool{}
	}
	s.verified[path] = true
}

// File returns the path of an object that the store has, with the permissions for a mode. It may write a file for that.
func (s *Store) File(ctx context.Context, p Pointer, executable bool) (path string, err error) {
	path = s.path(p.OID)
	if !executable {
		return path, nil
	}
	with := path + executableSuffix
	if ok, err := s.has(ctx, with, p); err != nil || ok {
		return with, err
	}
	temp, err := s.create(p.OID.String()+executableSuffix, 0o755)
	if err != nil {
		return "", err
	}
	defer temp.Close()
	from, err := os.Open(path)
	if err != nil {
		return "", disk.Error("copy an LFS object", err)
	}
	defer from.Close()
	if _, err := io.Copy(temp, from); err != nil {
		return "", disk.Error("copy an LFS object", err)
	}
	if err := os.Rename(temp.Name(), with); err != nil {
		return "", disk.Error("copy an LFS object", err)
	}
	s.setVerified(with)
	return with, nil
}

// create creates a file in the folder of this holder's downloads. It replaces an older one.
func (s *Store) create(name string, perm os.FileMode) (*os.File, error) {
	if err := os.MkdirAll(s.incoming(), 0o755); err != nil {
		return nil, disk.Error("download an LFS object", err)
	}
	path := filepath.Join(s.incoming(), name)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, disk.Error("download an LFS object", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, perm)
	return file, disk.Error("download an LFS object", err)
}

// download is an object that is being received.
type download struct {
	store *Store
	file  *os.File
	hash  hash.Hash
	want  Pointer
	size  int64 // received so far
}

// begin starts or continues the download of an object. What an earlier holder has received is copied, because
// that holder may still be writing to its file, and removed: otherwise each broken download would leave
// another copy.
func (s *Store) begin(ctx context.Context, p Pointer) (*download, error) {
	file, err := s.create(p.OID.String(), 0o644)
	if err != nil {
		return nil, err
	}
	d := &download{store: s, file: file, hash: sha256.New(), want: p}
	earlier, _ := disk.Glob(s.incomings(), "*/"+p.OID.String())
	for _, path := range earlier {
		if path == file.Name() {
			continue
		}
		if err := d.resume(ctx, path); err != nil {
			d.close()
			return nil, err
		}
	}
	return d, nil
}

// resume continues an earlier download, if it has more than this one, and removes it unless its holder may
// still be writing to it.
func (d *download) resume(ctx context.Context, path string) error {
	from, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if info.Size() > d.size && info.Size() <= d.want.Size {
		if err := errors.Join(d.restart(), d.copy(ctx, from)); err != nil {
			return err
		}
	}
	if !d.store.isEarlier(filepath.Base(filepath.Dir(path))) {
		return nil
	}
	return disk.Error("download an LFS object", removed(os.Remove(path)))
}

func (d *download) copy(ctx context.Context, from io.Reader) error {
	_, err := io.Copy(object.CancelWriter{Ctx: ctx, Writer: d}, from)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// restart discards the bytes received so far.
func (d *download) restart() error {
	d.hash.Reset()
	d.size = 0
	if err := d.file.Truncate(0); err != nil {
		return disk.Error("download an LFS object", err)
	}
	_, err := d.file.Seek(0, io.SeekStart)
	return disk.Error("download an LFS object", err)
}

var errTooLong = errors.New("it is longer than its pointer says")

// Write implements [io.Writer]. Its errors are of ClassVolume, except errTooLong.
func (d *download) Write(b []byte) (int, error) {
	if d.size+int64(len(b)) > d.want.Size {
		return 0, errTooLong
	}
	n, err := d.file.Write(b)
	d.size += int64(n)
	d.hash.Write(b[:n])
	return n, disk.Error("download an LFS object", err)
}

// finish moves a complete object into the store. It returns false if the content is not the object's.
func (d *download) finish() (ok bool, err error) {
	if d.size != d.want.Size || OID(d.hash.Sum(nil)) != d.want.OID {
		return false, nil
	}
	path := d.store.path(d.want.OID)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, disk.Error("store an LFS object", err)
	}
	if err := os.Rename(d.file.Name(), path); err != nil {
		return false, disk.Error("store an LFS object", err)
	}
	d.store.setVerified(path)
	return true, nil
}

func (d *download) close() { _ = d.file.Close() }

// isEarlier reports whether a folder in incoming is that of an earlier holder.
func (s *Store) isEarlier(name string) bool {
	fence, err := strconv.ParseUint(name, 10, 64)
	return err == nil && fence < s.Fence
}

// removed returns an error of os.Remove, unless there was nothing to remove.
func removed(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Retain removes what earlier holders have received of other objects than these.
func (s *Store) Retain(objects []Object) error {
	wanted := map[string]bool{}
	for _, o := range objects {
		wanted[o.OID.String()] = true
	}
	holders, err := disk.ReadDir(s.incomings())
	if err != nil {
		return disk.Error("clear LFS downloads", err)
	}
	for _, holder := range holders {
		if !s.isEarlier(holder.Name()) {
			continue
		}
		dir := filepath.Join(s.incomings(), holder.Name())
		entries, err := disk.ReadDir(dir)
		if err != nil {
			return disk.Error("clear LFS downloads", err)
		}
		for _, entry := range entries {
			if wanted[entry.Name()] {
				continue
			}
			if err := removed(os.Remove(filepath.Join(dir, entry.Name()))); err != nil {
				return disk.Error("clear LFS downloads", err)
			}
		}
		_ = os.Remove(dir) // unless something is left
	}
	return nil
}

// Clear removes the downloads of this holder and earlier ones that are not complete.
func (s *Store) Clear() error {
	entries, err := disk.ReadDir(s.incomings())
	if err != nil {
		return disk.Error("clear LFS downloads", err)
	}
	for _, entry := range entries {
		if fence, err := strconv.ParseUint(entry.Name(), 10, 64); err != nil || fence <= s.Fence {
			if err := os.RemoveAll(filepath.Join(s.incomings(), entry.Name())); err != nil {
				return disk.Error("clear LFS downloads", err)
			}
		}
	}
	return nil
}

// Incomplete reports whether there are downloads that are not complete.
func (s *Store) Incomplete() (bool, error) {
	entries, err := disk.ReadDir(s.incomings())
	return len(entries) > 0, err
}

// Unused calls visit with the paths of the objects that nothing else links.
func (s *Store) Unused(ctx context.Context, visit func(path string) error) error {
	err := filepath.WalkDir(s.objects(), func(path string, entry os.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, os.ErrNotExist):
			return nil
		case err != nil:
			return err
		case entry.IsDir():
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("stat %s: %w", path, err)
		}
		if st.Nlink > 1 {
			return nil
		}
		return visit(path)
	})
	return disk.Error("list LFS objects", err)
}
