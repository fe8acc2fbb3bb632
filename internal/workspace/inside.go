package workspace

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// InsideCommand is the subcommand of workspace that calls [Inside].
const InsideCommand = "inside"

// answerDescriptor is the descriptor to which Inside writes an answer. The command does not get it.
const answerDescriptor = 3

// answer says why the command does not run. Nothing is written if it does.
type answer struct {
	Step     string // that the kernel forbids, or ""
	Err      string
	NotFound bool // the command does not exist
}

func (a answer) err() error {
	err := errors.New(a.Err)
	switch {
	case a.Step != "":
		return &forbidden{a.Step, err}
	case a.NotFound:
		err = &notFoundError{err}
	}
	return &NotStarted{err}
}

// notFoundError is an error of another process that is [exec.ErrNotFound].
type notFoundError struct{ error }

func (*notFoundError) Is(target error) bool { return target == exec.ErrNotFound }

// startInOverlay starts the command in an overlay that is mounted at dir. It fails with *forbidden if the
// kernel forbids it, and with *NotStarted if only the command cannot be started.
func (e Exec) startInOverlay(l layers, dir string, files map[string]string) (*exec.Cmd, error) {
	if err := l.create(e.Tree.Dir(), files); err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	args := []string{"workspace", InsideCommand, "--", l.dir, dir, e.Tree.Dir(), strconv.Itoa(os.Getpid())}
	cmd := exec.Command("/proc/self/exe", append(args, e.Command...)...)
	cmd.Args[0] = os.Args[0]
	e.connect(cmd, dir)
	cmd.ExtraFiles = []*os.File{write} // answerDescriptor
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
	if !canMount() {
		enterUserNamespace(cmd.SysProcAttr)
	}
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		return nil, &forbidden{"create a user namespace", err}
	}
	var a answer
	err = gob.NewDecoder(read).Decode(&a) // not JSON: paths need not be UTF-8
	if errors.Is(err, io.EOF) {           // the command runs
		return cmd, nil
	}
	_ = cmd.Wait()
	if err != nil {
		return nil, err
	}
	return nil, a.err()
}

// enterUserNamespace lets a child process run in a user namespace in which it can mount. Its user and group
// stay the same.
func enterUserNamespace(attr *syscall.SysProcAttr) {
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
	// Starting a program drops all others. The overlay keeps these for its work folder.
	attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_DAC_OVERRIDE, unix.CAP_CHOWN, unix.CAP_FOWNER,
		unix.CAP_FSETID, unix.CAP_MKNOD}
}

// Inside does the part of [Exec] that runs in its own mount namespace, with the arguments after "--" of
// startInOverlay. It returns only on failure: nil after it has reported that to Exec, and an error in a
// process that Exec has not started. ctx ends with a signal that came before.
func Inside(ctx context.Context, args []string) error {
	runtime.LockOSThread()
	signal.Reset(os.Interrupt, syscall.SIGTERM) // as for the command
	isChild := func() bool { return args[3] == strconv.Itoa(os.Getppid()) }
	if len(args) < 5 || !isChild() {
		return errors.New("this command is for lockstep workspace exec only")
	}
	unix.CloseOnExec(answerDescriptor)
	err := func() error { // returns only if the command was not started
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := enter(layers{args[0]}, args[1], args[2]); err != nil {
			return err
		}
		if !isChild() {
			return errors.New("lockstep workspace exec has ended")
		}
		return become(args[4:])
	}()
	a := answer{Err: err.Error(), NotFound: errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist)}
	if failed, ok := errors.AsType[*forbidden](err); ok {
		a.Step, a.Err = failed.step, failed.err.Error()
	}
	return gob.NewEncoder(os.NewFile(answerDescriptor, "answer")).Encode(a)
}

// become replaces this process with the command. It returns only on failure.
func become(command []string) error {
	path, err := exec.LookPath(command[0])
	if lookup, ok := errors.AsType[*exec.Error](err); ok {
		err = lookup.Err
	}
	if err != nil {
		return fmt.Errorf("%s: %w", command[0], err)
	}
	return fmt.Errorf("%s: %w", command[0], unix.Exec(path, command, os.Environ()))
}

// enter mounts the overlay, protects the repository's folder, moves to the overlay and gives up the capabilities.
func enter(l layers, dir, tree string) error {
	// Unmounts on the machine still arrive here, so that this process does not keep file systems busy.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return &forbidden{"separate the mounts", err}
	}
	if err := l.mount(tree, dir); err != nil {
		return err
	}
	if err := protect(filepath.Dir(filepath.Dir(tree))); err != nil {
		return &forbidden{"make the volume read-only", err}
	}
	if err := os.Chdir(dir); err != nil {
		return err
	}
	if os.Geteuid() != 0 { // a program of root gets them again, and then not the signal below
		if err := dropCapabilities(); err != nil {
			return err
		}
	}
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
}

// protect makes a folder read-only in this mount namespace.
func protect(dir string) error {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.MountSetattr(unix.AT_FDCWD, dir, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// dropCapabilities lets the next program that this thread starts have no capabilities.
func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capset(&header, &data[0])
}
