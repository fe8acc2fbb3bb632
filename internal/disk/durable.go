package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
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

// Link atomically replaces a symbolic link, or creates it and the folders above it, so that it leads to a path by a
// relative target. It fails if anything but a link is in its place.
func Link(path, link string) error {
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	var dirs [2]string // without links, as the target is relative to where they lead
	for i, one := range []string{link, path} {
		abs, err := filepath.Abs(filepath.Dir(one))
		if err != nil {
			return err
		}
		if dirs[i], err = filepath.EvalSymlinks(abs); err != nil {
			return err
		}
	}
	target, err := filepath.Rel(dirs[0], filepath.Join(dirs[1], filepath.Base(path)))
	if err != nil {
		return err
	}
	now, err := os.Readlink(link)
	if err == nil && now == target || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temp := link + TempInfix + strconv.Itoa(os.Getpid())
	_ = os.Remove(temp)
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	defer os.Remove(temp) // fails after the rename
	return os.Rename(temp, link)
}

// WriteNew writes and syncs a new file, which must not exist.
func WriteNew(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	return writeAndClose(file, content, 0o644, true)
}

// Copy copies a file with its permissions and modification time to a path that does not exist. The copy shares its
// blocks where the file system can, because Go copies by copy_file_range(2).
func Copy(from, to string) error {
	src, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, info.Mode().Perm()|0o200)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if err = errors.Join(err, dst.Close()); err != nil {
		return err
	}
	return SetTime(to, info.ModTime())
}

// SetTime sets the modification time of a file or link.
func SetTime(path string, at time.Time) error {
	t := unix.NsecToTimespec(at.UnixNano())
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "set the time of", Path: path, Err: err}
	}
	return nil
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

// order is how a file system writes names to disk.
type order int

const (
	unordered  order = iota // each folder has to be synced
	ordered                 // in the order of the calls: a name made later is never on disk without the earlier ones
	committing              // as unordered, but one commit writes all names
	volatile                // nothing survives a power cut
)

const (
	flushers   = 32 // concurrent fsyncs: the disk's cache is flushed once for several of them
	fewFolders = 64 // more are written with one commit where that exists
)

// Flush makes the new folder dir and everything below it durable; files are the paths of its new files. Once
// it returns, no name made later can survive a power cut while something below dir is lost. [SyncDir] of the
// folder with that name then makes both durable. Hard links to older files need their folder alone. If ctx is
// cancelled, Flush soon returns its cause.
//
// Flush never syncs the whole file system, which would wait for the writes of others.
func Flush(ctx context.Context, dir string, files []string) error {
	return flush(ctx, dir, files, func() ([]string, error) { return foldersBelow(dir) })
}

// FlushChanged is [Flush] for new files and for folders with new or removed names, all on one file system.
func FlushChanged(files, folders []string) error {
	all := append(files[:len(files):len(files)], folders...)
	if len(all) == 0 {
		return nil
	}
	return flush(context.Background(), all[0], files, func() ([]string, error) { return folders, nil })
}

// SyncPath makes the names in the folder dir durable, and those of the folders from root down to it, which may be new.
func SyncPath(root, dir string) error {
	if orderOf(dir) == ordered {
		return SyncDir(dir)
	}
	folders := []string{dir}
	for dir != root && len(dir) > len(root) {
		dir = filepath.Dir(dir)
		folders = append(folders, dir)
	}
	return syncAll(context.Background(), folders, syncFile)
}

// flush syncs the files, and the folders where the file system of path does not order names.
func flush(ctx context.Context, path string, files []string, folders func() ([]string, error)) error {
	switch how := orderOf(path); how {
	case volatile:
		return nil
	case ordered:
		return syncAll(ctx, files, syncContent)
	default:
		changed, err := folders()
		if err != nil {
			return err
		}
		if how == committing && len(changed) > fewFolders {
			return errors.Join(syncAll(ctx, files, syncFile), commitNames(path))
		}
		return syncAll(ctx, append(files[:len(files):len(files)], changed...), syncFile)
	}
}

// foldersBelow lists dir and the folders below it.
func foldersBelow(dir string) (folders []string, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			folders = append(folders, path)
		}
		return err
	})
	return folders, err
}

// syncAll syncs files and folders concurrently. It skips symbolic links, which cannot be opened.
func syncAll(ctx context.Context, paths []string, sync func(*os.File) error) error {
	if len(paths) > flushers { // with all writes queued, the fsyncs wait less
		if err := each(ctx, paths, 2, startWriting); err != nil {
			return err
		}
	}
	return each(ctx, paths, flushers, sync)
}

func each(ctx context.Context, paths []string, limit int, sync func(*os.File) error) error {
	var g errgroup.Group
	g.SetLimit(limit)
	for _, path := range paths {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
			if errors.Is(err, unix.ELOOP) {
				return nil
			}
			if err != nil {
				return err
			}
			defer file.Close()
			return sync(file)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// syncContent syncs a file with content. An empty one is a name alone.
func syncContent(file *os.File) error {
	if info, err := file.Stat(); err != nil || info.Size() == 0 {
		return err
	}
	return syncFile(file)
}

// startWriting starts writing a file's content to disk without waiting. It does nothing where that is not supported, as
// for folders.
func startWriting(file *os.File) error {
	_ = unix.SyncFileRange(int(file.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	return nil
}

// orderOf returns how the file system of path writes names:
//
//   - ext4 with a journal commits transactions in order, and an fsync commits the running one with all names in it: see
//     "Journal" in the kernel's Documentation/filesystems/ext4, and ext4_sync_file in fs/ext4/fsync.c.
//   - XFS forces its log in order up to the last change of the synced inode: see
//     Documentation/filesystems/xfs/xfs-delayed-logging-design.rst and xfs_file_fsync in fs/xfs/xfs_file.c.
//   - An NFS server has names on disk before it answers: RFC 1813, section 4.8.
//   - ext4 without a journal, and file systems unknown here, promise what fsync(2) says: each file and folder has to be
//     synced.
//   - Btrfs writes a log per fsynced inode. For many folders, one commit of the transaction is cheaper.
//     Unlike syncfs it does not write the file contents of others: see btrfs_ioctl_start_sync in
//     fs/btrfs/ioctl.c.
func orderOf(path string) order {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil || observer.Load() != nil {
		return unordered
	}
	switch int64(st.Type) {
	case unix.TMPFS_MAGIC:
		return volatile
	case unix.XFS_SUPER_MAGIC, unix.NFS_SUPER_MAGIC:
		return ordered
	case unix.BTRFS_SUPER_MAGIC:
		return committing
	case unix.EXT4_SUPER_MAGIC: // also ext2, and ext4 without a journal
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && hasJournal(st.Dev) {
			return ordered
		}
	}
	return unordered
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

// The ioctls BTRFS_IOC_START_SYNC and BTRFS_IOC_WAIT_SYNC of linux/btrfs.h.
const (
	btrfsStartSync = 0x80089418
	btrfsWaitSync  = 0x40089416
)

// commitNames commits the running transaction of the Btrfs at path.
func commitNames(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if observe := observer.Load(); observe != nil {
		defer (*observe)("commit", path)
	}
	var transaction uint64
	for _, request := range []uintptr{btrfsStartSync, btrfsWaitSync} {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), request, uintptr(unsafe.Pointer(&transaction))); errno != 0 {
			return fmt.Errorf("commit the file system of %s: %w", path, errno)
		}
	}
	return nil
}

// SyncVolume syncs the whole file system of path, with the writes of others.
func SyncVolume(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if observe := observer.Load(); observe != nil {
		defer (*observe)("syncfs", path)
	}
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync the file system of %s: %w", path, err)
	}
	return nil
}
