package publish

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// fileSystems are names of common file systems, by their magic number.
var fileSystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs",
}

func fileSystemName(dir string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", fmt.Errorf("statfs %s: %w", dir, err)
	}
	if name, known := fileSystems[int64(uint32(st.Type))]; known {
		return name, nil
	}
	return fmt.Sprintf("file system %#x", st.Type), nil
}

// syncFileSystem waits until everything written to path's file system is on disk.
func syncFileSystem(path string) error {
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

// twoFsyncs returns the time to sync a small new file and its folder.
func twoFsyncs(dir string) (time.Duration, error) {
	file, err := os.CreateTemp(dir, "fsync-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if _, err := file.WriteString("the size of a small change\n"); err != nil {
		return 0, err
	}
	folder, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer folder.Close()
	began := time.Now()
	err = errors.Join(file.Sync(), folder.Sync())
	return time.Since(began), err
}
