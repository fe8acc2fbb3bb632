package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Replace atomically replaces the file at path: readers see the old or the new content, and the new one survives a
// power cut once Replace returns.
func Replace(path string, content []byte) error {
	return replace(path, content, true)
}

// ReplaceUnsynced is Replace without syncing: after a power cut the file may be lost or empty.
func ReplaceUnsynced(path string, content []byte) error {
	return replace(path, content, false)
}

func replace(path string, content []byte, synced bool) error {
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+TempInfix+"*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // fails after the rename
	if err := writeAndClose(temp, content, synced); err != nil {
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
	return writeAndClose(file, content, true)
}

func writeAndClose(file *os.File, content []byte, synced bool) error {
	_, err := file.Write(content)
	if err == nil {
		err = file.Chmod(0o644)
	}
	if err == nil && synced {
		err = file.Sync()
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
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("sync folder %s: %w", path, err)
	}
	return nil
}

// fewFiles is the maximum number of files that Flush syncs one by one. For more files, syncing the whole file system
// is faster.
const fewFiles = 64

// Flush syncs the new folder dir and everything below it; files are the paths of files with new content. It syncs
// a few files one by one on file systems that write names and links to disk in order, because syncing the whole
// file system also waits for the writes of others.
func Flush(dir string, files []string) error {
	if len(files) > fewFiles || !keepsOrder(dir) {
		return syncVolume(dir)
	}
	var g errgroup.Group
	g.SetLimit(16)
	for _, path := range files {
		g.Go(func() error { return syncFile(path) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return SyncDir(dir)
}

// keepsOrder reports whether a file system writes names to disk in the order of the calls (ext4, XFS, an NFS server),
// or loses everything in a power cut anyway (tmpfs).
func keepsOrder(path string) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return false
	}
	switch int64(fs.Type) {
	case unix.XFS_SUPER_MAGIC, unix.NFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return true
	case unix.EXT4_SUPER_MAGIC: // also ext2, and ext4 without a journal
		var st unix.Stat_t
		return unix.Stat(path, &st) == nil && hasJournal(st.Dev)
	}
	return false
}

// hasJournal reports whether the ext4 on a device has a journal, and hence a task that writes it.
func hasJournal(dev uint64) bool {
	name, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(dev), unix.Minor(dev)))
	if err != nil {
		return false
	}
	writer, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(name), "journal_task"))
	_, notANumber := strconv.Atoi(strings.TrimSpace(string(writer)))
	return err == nil && notANumber == nil
}

// syncFile syncs the content of a file. It does nothing for a symbolic link.
func syncFile(path string) error {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Sync()
}

// syncVolume syncs the file system of path: far cheaper than syncing thousands of files one by one.
func syncVolume(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync the file system of %s: %w", path, err)
	}
	return nil
}

// ReadDir is [os.ReadDir], but returns no entries if the folder does not exist.
func ReadDir(path string) ([]os.DirEntry, error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}
