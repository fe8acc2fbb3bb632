package gitrepo

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// replaceFile puts content at path in one step: readers see the old file or the new one, and after
// it returns the new one survives a power cut.
func replaceFile(path string, content []byte) error {
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+tempInfix+"*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // fails once renamed, as it should
	if err := writeAndSync(temp, content); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// tempInfix marks the files of replaceFile that a crash may leave.
const tempInfix = ".tmp-"

// writeFileSync writes a new file and waits until its content is on disk.
func writeFileSync(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	return writeAndSync(file, content)
}

func writeAndSync(file *os.File, content []byte) error {
	_, err := file.Write(content)
	if err == nil {
		err = file.Chmod(0o644)
	}
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// syncDir waits until the names in a folder are on disk.
func syncDir(path string) error {
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
