package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"lockstep/internal/git"
)

// Error returns a file system error as a retryable error of ClassVolume with advice. It returns nil for nil,
// and keeps the class of an error that has one. A path that is too long is a permanent error of ClassHostile:
// the commit has it, and does not fit below this volume's root.
func Error(attempt string, err error) error {
	if err == nil {
		return nil
	}
	if git.IsClassified(err) {
		return fmt.Errorf("%s: %w", attempt, err)
	}
	if errors.Is(err, syscall.ENAMETOOLONG) { // the path is left out: it may have 4,095 bytes
		return git.Errorf(git.Permanent, git.ClassHostile,
			"%s: a path in the repository is too long below this root; shorten it, or use a shorter root: %w", attempt,
			syscall.ENAMETOOLONG)
	}
	return git.Errorf(git.Retryable, git.ClassVolume, "%s: %w%s", attempt, err, volumeAdvice(err))
}

func volumeAdvice(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return "; free space on the volume"
	case errors.Is(err, syscall.EDQUOT):
		return "; raise the quota or free space"
	case errors.Is(err, syscall.EROFS):
		return "; remount the volume read-write"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return "; let this user write there"
	case errors.Is(err, syscall.EIO):
		return "; check the disk"
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EEXIST):
		return "; move the existing file away"
	}
	return ""
}

// Stat returns the operating system's description of a file.
func Stat(info fs.FileInfo) (*syscall.Stat_t, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("%s: no stat information", info.Name())
	}
	return st, nil
}

// Inode identifies a file by its device and inode number.
type Inode struct{ Dev, Ino uint64 }

// Glob returns the sorted paths in dir that match a pattern of [path.Match]. Unlike [filepath.Glob], it takes
// dir literally.
func Glob(dir, pattern string) ([]string, error) {
	names, err := fs.Glob(os.DirFS(dir), pattern)
	for i, name := range names {
		names[i] = filepath.Join(dir, filepath.FromSlash(name))
	}
	return names, err
}
