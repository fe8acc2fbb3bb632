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

// Replace puts content at path in one step: readers see the old file or the new one, and after
// it returns the new one survives a power cut.
func Replace(path string, content []byte) error {
	return replace(path, content, true)
}

// ReplaceUnsynced is replaceFile for what may be lost in a power cut, or be empty after it.
func ReplaceUnsynced(path string, content []byte) error {
	return replace(path, content, false)
}

func replace(path string, content []byte, synced bool) error {
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+TempInfix+"*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // fails once renamed, as it should
	if err := writeAndClose(temp, content, synced); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), path); err != nil || !synced {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// TempInfix marks the files of replaceFile that a crash may leave.
const TempInfix = ".tmp-"

// WriteNew writes a new file and waits until its content is on disk.
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

// SyncDir waits until the names in a folder are on disk.
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

// fewFiles is up to how many files are synced each by itself: more are synced quicker with all that is
// written to the file system.
const fewFiles = 64

// Flush waits until the folder dir, just made in private, is on disk with all below it; files are the
// paths of those with content that is new. A few files are synced each by itself, on file systems that
// bring names and links to disk in the order in which they were made: to sync the whole file system
// would be to wait for what everybody else has written to it.
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

// keepsOrder reports whether a file system has one journal for all its names (ext4, XFS), keeps them on
// a server that has (NFS), or does not outlive the power anyway (tmpfs).
func keepsOrder(path string) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return false
	}
	switch int64(fs.Type) {
	case unix.XFS_SUPER_MAGIC, unix.NFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return true
	case unix.EXT4_SUPER_MAGIC: // and ext2's, and that of an ext4 made without a journal
		var st unix.Stat_t
		return unix.Stat(path, &st) == nil && hasJournal(st.Dev)
	}
	return false
}

// hasJournal reports whether the ext4 on a device has a journal: there is somebody then who writes it.
func hasJournal(dev uint64) bool {
	name, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(dev), unix.Minor(dev)))
	if err != nil {
		return false
	}
	writer, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(name), "journal_task"))
	_, notANumber := strconv.Atoi(strings.TrimSpace(string(writer)))
	return err == nil && notANumber == nil
}

// syncFile waits until a file's content is on disk. A symbolic link has none.
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

// syncVolume waits until everything written to path's file system is on disk: for a tree of
// thousands of files far cheaper than syncing each.
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

// ReadDir is [os.ReadDir], of no entries when the folder is not there.
func ReadDir(path string) ([]os.DirEntry, error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}
