package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/git/checkout"
	"lockstep/internal/volume"
	"lockstep/tree"
)

// Kind is how a workspace was made.
type Kind string

// The kinds. As a request, "" takes the first that is possible.
const (
	KindOverlay Kind = "overlay"
	KindReflink Kind = "reflink"
	KindCopy    Kind = "copy"
)

// Exec runs a command in a workspace that exists only for it.
type Exec struct {
	Root    string // of the volume
	Tree    *tree.Tree
	Name    string // published name of the tree
	Command []string
	Environ []string
	Kind    Kind         // optional
	Scratch string       // folder for written files; defaults to os.TempDir()
	Note    func(string) // is called with the reason why an overlay is impossible, or with leftovers that could not be removed. Optional
}

// NotStarted means that the command could not be started. It wraps the reason, such as [exec.ErrNotFound].
type NotStarted struct{ Err error }

func (e *NotStarted) Error() string { return e.Err.Error() }
func (e *NotStarted) Unwrap() error { return e.Err }

// Run runs the command in the workspace, with this process' standard input, output and error, and removes the workspace. It
// passes on the signals that this process gets, and returns how the command ended.
func (e Exec) Run(ctx context.Context) (status syscall.WaitStatus, err error) {
	base := cmp.Or(e.Scratch, os.TempDir())
	if base, err = filepath.Abs(base); err == nil {
		err = checkOutside(base, e.Root)
	}
	if err != nil {
		return 0, fmt.Errorf("create the workspace: %w with --scratch", err)
	}
	_, _ = Sweep(base) // leftovers of other commands must not fail this one
	s, err := newScratch(base)
	if err != nil {
		return 0, fmt.Errorf("create the workspace: %w; choose a writable folder with --scratch", err)
	}
	defer func() {
		if removeErr := s.remove(); removeErr != nil { // not an error: the command's status counts
			e.note(fmt.Sprintf("remove the workspace: %v; the next workspace exec tries again", removeErr))
		}
	}()
	run := &execution{Exec: e, scratch: s}
	defer run.close()
	if err := run.prepare(); err != nil {
		return 0, fmt.Errorf("create the workspace: %w", err)
	}
	// The kernel sends Pdeathsig when the thread ends that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := forwardSignals()
	defer signals.stop()
	if err := context.Cause(ctx); err != nil { // a signal arrived before the start
		return 0, err
	}
	cmd, err := run.start(ctx)
	if err != nil {
		return 0, err
	}
	signals.to(cmd.Process)
	err = cmd.Wait()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return 0, err
	}
	return cmd.ProcessState.Sys().(syscall.WaitStatus), nil
}

func (e Exec) note(text string) {
	if e.Note != nil {
		e.Note(text)
	}
}

// execution is one Run.
type execution struct {
	Exec
	scratch scratch
	dir     string // in which the command runs
	objects *os.File
	files   map[string]string // see gitFiles
}

func (e *execution) prepare() (err error) {
	objects, err := volume.ObjectsPin(e.Tree.Dir())
	if err != nil {
		return err
	}
	if e.objects, err = lockShared(objects); err != nil {
		return err
	}
	if e.dir, err = e.scratch.target(e.Name); err != nil {
		return err
	}
	id := strings.TrimPrefix(filepath.Base(e.scratch.dir), scratchPrefix)
	w := volume.Workspace{ID: id, Name: e.Name, Ref: e.Tree.Ref(), Commit: e.Tree.Commit(), Tree: filepath.Base(e.Tree.Dir()), Dir: e.dir,
		UID: os.Geteuid(), Created: time.Now().UTC().Truncate(time.Second)}
	if err = e.scratch.describe(w); err != nil {
		return err
	}
	e.files, err = gitFiles(e.Tree.Dir(), e.Tree.Ref(), e.Tree.Commit(), id)
	return err
}

func (e *execution) close() {
	if e.objects != nil {
		_ = e.objects.Close()
	}
}

// start starts the command in an overlay or, if that is impossible, in a copy of the tree.
func (e *execution) start(ctx context.Context) (*exec.Cmd, error) {
	if e.Kind == "" || e.Kind == KindOverlay {
		cmd, err := e.startInOverlay()
		_, forbidden := errors.AsType[*stepError](err)
		switch {
		case !forbidden:
			return cmd, err
		case e.Kind == KindOverlay:
			return nil, fmt.Errorf("create the workspace: %w", err)
		}
		e.note(fmt.Sprintf("the workspace is a copy of all files, because an overlay is impossible: %v", err))
		if err := e.scratch.layers().remove(); err != nil {
			return nil, fmt.Errorf("create the workspace: %w", err)
		}
	}
	c := cloner{need: e.Kind == KindReflink}
	if _, err := c.clone(ctx, e.Tree.Dir(), e.dir); err != nil {
		return nil, fmt.Errorf("create the workspace: %w", err)
	}
	git := checkout.GitDirOf(e.dir)
	if err := errors.Join(writeGit(git.Dir, e.files), datedIndex(e.Tree.Dir(), git.Index(), true)); err != nil {
		return nil, fmt.Errorf("create the workspace: %w", err)
	}
	cmd := exec.Command(e.Command[0], e.Command[1:]...)
	e.connect(cmd)
	cmd.Dir = e.dir
	if err := cmd.Start(); err != nil {
		return nil, &NotStarted{err}
	}
	return cmd, nil
}

// connect gives a child process this one's input, output and error, and ends it with this process.
func (e *execution) connect(cmd *exec.Cmd) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = environ(e.Environ, map[string]string{
		"LOCKSTEP_WORKSPACE": e.dir, "LOCKSTEP_TREE": e.Tree.Dir(), "LOCKSTEP_COMMIT": e.Tree.Commit(), "LOCKSTEP_REF": e.Tree.Ref().String(), "PWD": e.dir,
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// ofRepository are variables that let git work on another repository than that of the working directory, as git sets them for hooks.
var ofRepository = []string{
	"GIT_DIR", "GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
	"GIT_QUARANTINE_PATH", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE", "GIT_REPLACE_REF_BASE", "GIT_NO_REPLACE_OBJECTS",
}

// secrets are Lockstep's variables that are or contain secrets; further ones begin with secretPrefixes.
var (
	secrets        = []string{"LOCKSTEP_API_TOKEN", "LOCKSTEP_REDIS", "LOCKSTEP_PROXY"}
	secretPrefixes = []string{"LOCKSTEP_CREDENTIAL_", "LOCKSTEP_HOOK_"}
)

func isKept(name string) bool {
	hasPrefix := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	return !slices.Contains(ofRepository, name) && !slices.Contains(secrets, name) && !slices.ContainsFunc(secretPrefixes, hasPrefix)
}

// environ returns an environment with some variables replaced, and without those of another repository and Lockstep's secrets.
func environ(environ []string, set map[string]string) []string {
	var result []string
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if _, ours := set[name]; !ours && isKept(name) {
			result = append(result, pair)
		}
	}
	for name, value := range set {
		result = append(result, name+"="+value)
	}
	return result
}

// startInOverlay starts the command in an overlay. It fails with a *stepError if the kernel forbids it, and with *NotStarted if only
// the command cannot be started.
func (e *execution) startInOverlay() (*exec.Cmd, error) {
	if err := e.scratch.layers().create(e.Tree.Dir(), e.files); err != nil {
		return nil, fmt.Errorf("create the workspace: %w", err)
	}
	ownNamespace := !canMount()
	in := inside{
		Scratch: e.scratch.dir, Dir: e.dir, Tree: e.Tree.Dir(), Repo: filepath.Dir(filepath.Dir(e.Tree.Dir())), Parent: os.Getpid(),
		UserNamespace: ownNamespace, UserXattr: ownNamespace || inUserNamespace(), Command: e.Command,
	}
	cmd := exec.Command("/proc/self/exe", insideArgs...)
	cmd.Args[0] = os.Args[0]
	e.connect(cmd)
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
	if ownNamespace {
		enterUserNamespace(cmd.SysProcAttr)
	}
	answer, err := in.start(cmd)
	if err != nil {
		return nil, &stepError{step: stepNamespace, err: errnoOf(err), folder: e.scratch.dir, user: ownNamespace}
	}
	if answer.Step != "" || answer.Failed != "" {
		_ = cmd.Wait()
		return nil, answer.error(in)
	}
	return cmd, nil
}

// enterUserNamespace lets a child process run in a user namespace in which it can mount. Its user and group stay the same.
func enterUserNamespace(attr *syscall.SysProcAttr) {
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
	// Starting a program drops all others. The overlay keeps these for its work folder.
	attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_DAC_OVERRIDE, unix.CAP_CHOWN, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_MKNOD}
}
