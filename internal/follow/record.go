package follow

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
)

// Record keeps, on a volume, which reader it follows, and how far. While it is open, no other process can open it.
type Record struct {
	path     string
	lock     *os.File
	kept     kept
	deepened bool
}

// kept is the stored form of a record.
type kept struct {
	URL    string       `json:"url"`
	Depth  events.Depth `json:"depth"`
	Cursor string       `json:"cursor,omitempty"`
}

// Names below {root}/.lockstep.
const (
	recordName = "follow.json"
	lockName   = "follow.lock"
)

// OpenRecord opens the record of the volume at root for the reader at a URL. empty reports whether the volume has no
// repositories. It fails if the volume belongs to a service, to the copy of another reader, or to a running process.
func OpenRecord(root, url string, depth events.Depth, empty func() (bool, error)) (r *Record, err error) {
	dir := filepath.Join(root, ".lockstep")
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, disk.Error("open the lock of the follower", err)
	}
	defer func() {
		if err != nil {
			_ = lock.Close()
		}
	}()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("root %s: another lockstep follow runs there; stop it, or choose another --root", root)
	}
	r = &Record{path: filepath.Join(dir, recordName), lock: lock, kept: kept{URL: url, Depth: depth}}
	text, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		if isEmpty, err := empty(); err != nil {
			return nil, err
		} else if !isEmpty {
			return nil, fmt.Errorf("root %s has repositories that are not copies of a reader; choose another --root", root)
		}
		return r, r.save()
	}
	if err != nil {
		return nil, disk.Error("read the record of the follower", err)
	}
	var before kept
	if err := json.Unmarshal(text, &before); err != nil { // it is replaced as a whole: damaged by hand
		return nil, fmt.Errorf("%s cannot be parsed; restore it, or write {\"url\": %q} to it: %w", r.path, url, err)
	}
	if before.URL != url {
		return nil, fmt.Errorf("root %s follows %s; choose another --root, or delete this one", root, before.URL)
	}
	if r.deepened = !before.Depth.Covers(depth); !r.deepened {
		r.kept.Cursor = before.Cursor
	}
	return r, nil
}

// Cursor returns the kept position, or "" if there is none.
func (r *Record) Cursor() string { return r.kept.Cursor }

// Deepened reports whether the follower is configured to keep more history than before. It is false once a
// position is stored.
func (r *Record) Deepened() bool { return r.deepened }

// SetCursor keeps a position.
func (r *Record) SetCursor(cursor string) error {
	if r.kept.Cursor == cursor {
		return nil
	}
	r.kept.Cursor, r.deepened = cursor, false
	return r.save()
}

func (r *Record) save() error {
	text, err := json.Marshal(r.kept)
	if err != nil {
		return err
	}
	if err := disk.Replace(r.path, append(text, '\n')); err != nil {
		return disk.Error("keep the position of the follower", err)
	}
	return nil
}

// Close lets another process open the record.
func (r *Record) Close() { _ = r.lock.Close() }
