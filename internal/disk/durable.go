package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
)

// Replace atomically replaces the file at path: readers see the old or the new content, and the new one survives a
// power cut once Replace returns.
func Replace(path string, content []byte) error {
	return replace(path, content, 0o644, true)
}

// ReplacePrivate is [Replace] for a file that only its owner can read.
func ReplacePrivate(path string, content []byte) error {
	return replace(path, content, 0o600, true)
}

// ReplaceUnsynced is Replace without syncing: after a power cut the file may be lost or empty.
func ReplaceUnsynced(path string, content []byte) error {
	return replace(path, content, 0o644, false)
}

func replace(path string, content []byte, mode os.FileMode, synced bool) error {
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+TempInfix+"*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // fails after the rename
	if err := writeAndClose(temp, content, mode, synced); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), path); err != nil || !synced {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// TempInfix is part of the names of temporary files, which a crash may leave behind.
const TempInfix = ".tmp-"

// WriteNew writes and syncs a new file, which must not exist.
func WriteNew(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	return writeAndClose(file, content, 0o644, true)
}

func writeAndClose(file *os.File, content []byte, mode os.FileMode, synced bool) error {
	_, err := file.Write(content)
	if err == nil {
		err = file.Chmod(mode)
	}
	if err == nil && synced {
		err = syncFile(file)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// SyncDir syncs the names in a folder to disk.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := syncFile(dir); err != nil {
		return fmt.Errorf("sync folder %s: %w", path, err)
	}
	return nil
}

// syncFile syncs a file or folder.
func syncFile(file *os.File) error {
	err := file.Sync()
	if observe := observer.Load(); observe != nil {
		(*observe)("fsync", file.Name())
	}
	return err
}

// observer is called after each sync: see Observe.
var observer atomic.Pointer[func(call, path string)]

// Observe has fn called after each "fsync", "commit" and "syncfs" of the process with the path, for tests. It
// is called by several goroutines. Meanwhile every file system counts as one that does not order names, so
// that tests see the same syncs everywhere. A nil fn ends that.
func Observe(fn func(call, path string)) {
	if fn == nil {
		observer.Store(nil)
		return
	}
	observer.Store(&fn)
}

// ReadDir is [os.ReadDir], but returns no entries if the folder does not exist.
func ReadDir(path string) ([]os.DirEntry, error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}
