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
	"syscall"

	"lockstep/internal/execute"
	"lockstep/internal/volume"
	"lockstep/tree"
)

// Kind is how a workspace is made.
type Kind string

// The kinds.
const (
	KindAuto    Kind = "auto" // an overlay if possible, else a copy
	KindOverlay Kind = "overlay"
	KindCopy    Kind = "copy"
)

// Exec runs a command in a workspace that exists only for it.
type Exec struct {
	Root    string // of the volume
	Tree    *tree.Tree
	Name    string // published name of the tree
	Command []string
	Environ []string
	Kind    Kind
	Scratch string       // folder for written files; defaults to os.TempDir()
	Note    func(string) // called with the reason why an overlay is impossible, or why files could not be removed
}

// NotStarted means that the command could not be started. It wraps the reason, such as [exec.ErrNotFound].
type NotStarted struct{ Err error }

func (e *NotStarted) Error() string { return e.Err.Error() }
func (e *NotStarted) Unwrap() error { return e.Err }

// Run runs the command in the workspace, with this process' standard input, output and error, and removes the
// workspace. It passes on the signals that this process gets, and returns how the command ended.
func (e Exec) Run(ctx context.Context) (status syscall.WaitStatus, err error) {
	if e.Scratch, err = filepath.Abs(cmp.Or(e.Scratch, os.TempDir())); err != nil {
		return 0, fmt.Errorf("create the workspace: %w with --scratch", err)
	}
	if err := checkOutside(e.Scratch, e.Root); err != nil {
		return 0, fmt.Errorf("create the workspace: %w with --scratch", err)
	}
	sweep(e.Scratch)
	s, err := newScratch(e.Scratch)
	if err != nil {
		return 0, fmt.Errorf("create the workspace: %w; choose a writable folder with --scratch", err)
	}
	defer func() {
		if removeErr := s.remove(); removeErr != nil { // not an error: the command's status counts
			e.Note(fmt.Sprintf("remove the workspace: %v; the next workspace exec tries again", removeErr))
		}
	}()
	objects, err := volume.PinObjects(ctx, e.Tree.Dir())
	if err != nil {
		return 0, fmt.Errorf("create the workspace: %w", err)
	}
	defer objects.Close()
	// The kernel sends Pdeathsig when the thread ends that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := newForwarder()
	defer signals.stop()
	if err := context.Cause(ctx); err != nil { // a signal arrived before
		return 0, err
	}
	cmd, err := e.start(ctx, s)
	if err != nil {
		if _, ok := errors.AsType[*NotStarted](err); ok {
			return 0, err
		}
		return 0, fmt.Errorf("create the workspace: %w", err)
	}
	signals.forward(cmd.Process)
	err = cmd.Wait()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return 0, err
	}
	return cmd.ProcessState.Sys().(syscall.WaitStatus), nil
}

// start starts the command in an overlay or, if that is impossible, in a copy of the tree.
func (e Exec) start(ctx context.Context, s scratch) (*exec.Cmd, error) {
	dir, err := s.target(e.Name)
	if err != nil {
		return nil, err
	}
	files, err := gitFiles(e.Tree)
	if err != nil {
		return nil, err
	}
	if e.Kind != KindCopy {
		cmd, err := e.startInOverlay(s.layers(), dir, files)
		if _, failed := errors.AsType[*forbidden](err); !failed || e.Kind == KindOverlay {
			return cmd, err
		}
		e.Note(fmt.Sprintf("the workspace is a copy of all files, because an overlay is impossible: %v; "+
			"see docs/workspaces.md", err))
		if err := s.layers().remove(); err != nil {
			return nil, err
		}
	}
	if err := copyTree(ctx, e.Tree.Dir(), dir, files); err != nil {
		return nil, err
	}
	cmd := exec.Command(e.Command[0], e.Command[1:]...)
	e.connect(cmd, dir)
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		return nil, &NotStarted{err}
	}
	return cmd, nil
}

// connect gives a child process this one's input, output and error, and ends it with this process.
func (e Exec) connect(cmd *exec.Cmd, dir string) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(execute.Environ(e.Environ, e.Tree, dir), "LOCKSTEP_WORKSPACE="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
