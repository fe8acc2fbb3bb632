// Package apart starts processes that are not meant by what is typed at the terminal.
package apart

import (
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start is cmd.Start in a process group of its own, so that Ctrl-C is for whoever runs it. Between fork and
// that group the process is still among those that the terminal means: it is born with the signal blocked.
func Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	runtime.LockOSThread() // the mask is the thread's, and the process inherits it
	defer runtime.UnlockOSThread()
	var interrupt, before unix.Sigset_t
	interrupt.Val[0] = 1 << (unix.SIGINT - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &interrupt, &before); err != nil {
		return err
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }()
	return cmd.Start()
}
