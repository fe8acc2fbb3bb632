package publish

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
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

const (
	writerFiles     = 5_000
	writerFolders   = 100
	writerFileBytes = 4_096
)

// startWriter writes files in a loop until stop is called, each round into a new folder, and then deletes the folder before it.
func startWriter(dir string) (stop func() error) {
	var writing sync.WaitGroup
	var err error
	end := make(chan struct{})
	writing.Go(func() {
		for round := 0; err == nil; round++ {
			select {
			case <-end:
				return
			default:
				err = writeRound(filepath.Join(dir, fmt.Sprint("round-", round)), end)
				_ = os.RemoveAll(filepath.Join(dir, fmt.Sprint("round-", round-1)))
			}
		}
	})
	return func() error {
		close(end)
		writing.Wait()
		return errors.Join(err, os.RemoveAll(dir))
	}
}

func writeRound(dir string, end <-chan struct{}) error {
	content := make([]byte, writerFileBytes)
	for i := range writerFiles {
		folder := filepath.Join(dir, fmt.Sprint(i%writerFolders))
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprint(i)), content, 0o600); err != nil {
			return err
		}
		select {
		case <-end:
			return nil
		default:
		}
	}
	return nil
}
