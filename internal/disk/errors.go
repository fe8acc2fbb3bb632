package disk

import (
	"errors"
	"fmt"
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
