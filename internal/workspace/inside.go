package workspace

import (
	"context"
	"encoding/gob"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// InsideCommand is the subcommand of workspace that calls [Inside].
const InsideCommand = "inside"

var insideArgs = []string{"workspace", InsideCommand}

// inside is what [Inside] does: mount an overlay and become a command in it.
type inside struct {
	Scratch       string
	Dir           string // where to mount
	Tree          string
	Repo          string // folder of the repository on the volume
	Parent        int    // process ID
	UserNamespace bool
	UserXattr     bool
	Command       []string
}

// Descriptors of Inside, which the command does not get.
const (
	fdRequest = 3 + iota
	fdAnswer
)

// answer says why the command does not run. It is empty if it does.
type answer struct {
	Step     step          // that the kernel forbids
	Errno    syscall.Errno // of Step
	Folder   string        // of Step
	Failed   string        // why the command cannot be started
	NotFound bool          // it does not exist
}

func (a answer) error(in inside) error {
	if a.Step != "" {
		return &stepError{step: a.Step, err: a.Errno, folder: a.Folder, owner: ownerOf(in.Tree), user: in.UserNamespace}
	}
	err := errors.New(a.Failed)
	if a.NotFound {
		err = &notFoundError{err}
	}
	return &NotStarted{err}
}

// notFoundError is an error of another process that is [exec.ErrNotFound].
type notFoundError struct{ error }

func (*notFoundError) Is(target error) bool { return target == exec.ErrNotFound }

// start starts cmd, which calls Inside, and waits until it has become the command or failed.
func (in inside) start(cmd *exec.Cmd) (answer, error) {
	request, err := in.file()
	if err != nil {
		return answer{}, err
	}
	defer request.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return answer{}, err
	}
	defer read.Close()
	cmd.ExtraFiles = []*os.File{request, write}
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		return answer{}, err
	}
	var a answer
	err = gob.NewDecoder(read).Decode(&a)
	if errors.Is(err, io.EOF) { // the command runs
		err = nil
	}
	return a, err
}

// file returns an open file with the request, which may be larger than a pipe holds.
func (in inside) file() (*os.File, error) {
	file, err := os.CreateTemp(in.Scratch, "request-")
	if err != nil {
		return nil, err
	}
	if err = gob.NewEncoder(file).Encode(in); err == nil { // not JSON: paths need not be UTF-8
		_, err = file.Seek(0, io.SeekStart)
	}
	return file, errors.Join(err, os.Remove(file.Name()))
}

// Inside does the part of [Exec] that runs in its own mount namespace. It returns only on failure: nil after it has reported that
// to Exec, and an error in a process that Exec has not started. ctx ends with a signal that came before.
func Inside(ctx context.Context) error {
	runtime.LockOSThread()
	signal.Reset(os.Interrupt, syscall.SIGTERM) // as for the command
	if ctx.Err() != nil {
		DieBy(syscall.SIGTERM)
	}
	request, report := os.NewFile(fdRequest, "request"), os.NewFile(fdAnswer, "answer")
	var in inside
	if err := gob.NewDecoder(request).Decode(&in); err != nil || in.Scratch == "" {
		return errors.New("this command is for lockstep workspace exec only")
	}
	unix.CloseOnExec(fdRequest)
	unix.CloseOnExec(fdAnswer)
	return gob.NewEncoder(report).Encode(in.run())
}

func (in inside) run() answer {
	if err := in.enter(); err != nil {
		failed, ok := errors.AsType[*stepError](err)
		if !ok {
			return answer{Failed: err.Error()}
		}
		errno, _ := errors.AsType[syscall.Errno](failed.err)
		return answer{Step: failed.step, Errno: errno, Folder: failed.folder}
	}
	path, err := exec.LookPath(in.Command[0])
	if err == nil {
		err = unix.Exec(path, in.Command, os.Environ())
	}
	return answer{Failed: in.Command[0] + ": " + errText(err), NotFound: errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist)}
}

func errText(err error) string {
	if lookup, ok := errors.AsType[*exec.Error](err); ok {
		err = lookup.Err
	}
	return err.Error()
}

// enter mounts the overlay, protects the repository's folder, moves to the overlay and gives up all capabilities.
func (in inside) enter() error {
	// Unmounts on the machine still arrive here, so that this process does not keep file systems busy.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return &stepError{step: stepSeparate, err: err}
	}
	tree, err := os.Open(in.Tree) // one that was opened in another mount namespace cannot be mounted
	if err != nil {
		return err
	}
	defer tree.Close()
	err = layers{in.Scratch}.mount(tree, in.Dir, mountOptions{source: "lockstep", temporary: true, userXattr: in.UserXattr})
	if err != nil {
		return err
	}
	if err := probe(in.Dir); err != nil {
		return err
	}
	if err := protect(in.Repo); err != nil {
		return err
	}
	if err := os.Chdir(in.Dir); err != nil {
		return err
	}
	if in.UserNamespace {
		if err := dropCapabilities(); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if os.Getppid() != in.Parent {
		return errors.New("lockstep workspace exec has ended")
	}
	return nil
}

// protect makes a folder read-only in this mount namespace.
func protect(dir string) error {
	err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, "")
	if err == nil {
		err = unix.MountSetattr(unix.AT_FDCWD, dir, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	}
	if errors.Is(err, unix.ENOSYS) {
		err = remountReadOnly(dir)
	}
	if err != nil {
		return &stepError{step: stepProtect, err: err, folder: dir}
	}
	return nil
}

// remountReadOnly makes a mount read-only before Linux 5.12. The other flags must stay, because a user namespace may not clear them.
func remountReadOnly(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	flags := uintptr(st.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME)
	if st.Flags&unix.ST_RELATIME != 0 {
		flags |= unix.MS_RELATIME
	}
	return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, "")
}

// dropCapabilities lets the next program that this thread starts have no capabilities, unless its user is root.
func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capset(&header, &data[0])
}
