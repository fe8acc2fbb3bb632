package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"lockstep/internal/git/checkout"
)

// layers is the folder of an overlay: its upper layer and its work folder, which must be on one file system.
type layers struct{ dir string }

func (l layers) upper() string { return filepath.Join(l.dir, "upper") }
func (l layers) work() string  { return filepath.Join(l.dir, "work") }

// create creates the folders and the files in which the workspace's .git differs from the tree's.
func (l layers) create(tree string, files map[string]string) error {
	info, err := os.Stat(tree)
	if err != nil {
		return err
	}
	for path, perm := range map[string]os.FileMode{l.upper(): info.Mode().Perm() | 0o700, l.work(): 0o700} {
		if err := os.Mkdir(path, perm); err != nil {
			return err
		}
	}
	git := checkout.GitDirOf(l.upper())
	if err := writeGit(git.Dir, files); err != nil {
		return err
	}
	if err := datedIndex(tree, git.Index(), false); err != nil {
		return err
	}
	return os.WriteFile(l.complete(), nil, 0o644)
}

// remove removes what create made.
func (l layers) remove() error {
	return errors.Join(removeAll(l.upper()), removeAll(l.work()), os.RemoveAll(l.complete()))
}

// complete is the path of a file that exists once create is done.
func (l layers) complete() string { return filepath.Join(l.dir, "complete") }

// mountOptions describes an overlay mount.
type mountOptions struct {
	source    string // shown by mount
	temporary bool   // nothing survives a crash of the machine; writing is faster
	userXattr bool   // in a user namespace
}

// mount mounts the overlay of an open tree on target. Folders are given as descriptors, because a mount option must not contain
// commas, colons and backslashes.
func (l layers) mount(tree *os.File, target string, o mountOptions) error {
	var folders [3]string
	for i, path := range []string{l.upper(), l.work(), target} {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		defer unix.Close(fd)
		folders[i] = fdPath(uintptr(fd))
	}
	options := []string{"lowerdir=" + fdPath(tree.Fd()), "upperdir=" + folders[0], "workdir=" + folders[1], "index=off"}
	if o.userXattr {
		options = append(options, "userxattr") // excludes redirect_dir
	} else {
		options = append(options, "redirect_dir=on", "metacopy=off") // folders of the tree can be renamed
	}
	if o.temporary {
		options = append(options, "volatile")
	}
	err := unix.Mount(o.source, folders[2], "overlay", unix.MS_NODEV, strings.Join(options, ","))
	if err != nil {
		return &stepError{step: stepMount, err: err, folder: l.dir}
	}
	return nil
}

func fdPath(fd uintptr) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// probe checks that files of the tree can be changed in the overlay at dir, by changing a small one.
func probe(dir string) error {
	file, err := os.OpenFile(filepath.Join(dir, ".git", "lockstep-commit"), os.O_RDWR, 0)
	if err != nil {
		return &stepError{step: stepWrite, err: errnoOf(err), folder: dir}
	}
	return file.Close()
}

// canMount reports whether this process has the capabilities that an overlay needs: CAP_SYS_ADMIN to mount it, CAP_DAC_OVERRIDE
// for its work folder.
func canMount() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return false
	}
	for _, needed := range []int{unix.CAP_SYS_ADMIN, unix.CAP_DAC_OVERRIDE} {
		if data[needed/32].Effective&(1<<(needed%32)) == 0 {
			return false
		}
	}
	return true
}

// inUserNamespace reports whether this process is in another user namespace than that of the machine.
func inUserNamespace() bool {
	content, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || strings.Join(strings.Fields(string(content)), " ") != "0 0 4294967295"
}

// errnoOf returns the system call's error.
func errnoOf(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return err
}
