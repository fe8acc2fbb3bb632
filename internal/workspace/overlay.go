package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// forbidden is a step in mounting an overlay that failed: the files are copied instead.
type forbidden struct {
	step string
	err  error
}

func (e *forbidden) Error() string { return fmt.Sprintf("%s: %v", e.step, e.err) }
func (e *forbidden) Unwrap() error { return e.err }

// layers is the folder of an overlay: its upper layer and its work folder, which must be on one file system.
type layers struct{ dir string }

func (l layers) upper() string { return filepath.Join(l.dir, "upper") }
func (l layers) work() string  { return filepath.Join(l.dir, "work") }

// create creates the folders, and the files in which the workspace's .git differs from the tree's.
func (l layers) create(tree string, files map[string]string) error {
	info, err := os.Stat(tree)
	if err != nil {
		return err
	}
	if err := os.Mkdir(l.work(), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(l.upper(), info.Mode().Perm()|0o700); err != nil {
		return err
	}
	return writeGit(tree, l.upper(), files)
}

// remove removes what create and a failed mount made.
func (l layers) remove() error { return errors.Join(removeAll(l.upper()), removeAll(l.work())) }

// mount mounts the overlay of a tree on target. Folders are given as descriptors, because a mount option must
// not contain commas, colons and backslashes. Nothing survives a crash of the machine, which makes writing
// faster.
func (l layers) mount(tree, target string) error {
	var folders [4]string
	for i, path := range []string{tree, l.upper(), l.work(), target} {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		defer unix.Close(fd)
		folders[i] = fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,index=off,volatile,", folders[0], folders[1], folders[2])
	if inUserNamespace() {
		options += "userxattr" // excludes redirect_dir
	} else {
		options += "redirect_dir=on,metacopy=off" // folders of the tree can be renamed
	}
	if err := unix.Mount("lockstep", folders[3], "overlay", unix.MS_NODEV, options); err != nil {
		return &forbidden{"mount the overlay", err}
	}
	// Files of other users may not be writable: open a small one.
	file, err := os.OpenFile(filepath.Join(target, ".git", "lockstep-commit"), os.O_RDWR, 0)
	if err != nil {
		return &forbidden{"write to the overlay", err}
	}
	return file.Close()
}

// canMount reports whether this process has the capabilities that an overlay needs: CAP_SYS_ADMIN to mount
// it, CAP_DAC_OVERRIDE for its work folder.
func canMount() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return false
	}
	const needed = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_DAC_OVERRIDE // of the first 32
	return data[0].Effective&needed == needed
}

// inUserNamespace reports whether this process is in another user namespace than that of the machine.
func inUserNamespace() bool {
	content, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || strings.Join(strings.Fields(string(content)), " ") != "0 0 4294967295"
}
