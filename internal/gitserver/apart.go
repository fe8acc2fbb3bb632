package gitserver

import (
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// startApart is cmd.Start in a process group of its own, so that Ctrl-C is for whoever runs it. Between fork and
// that group the process is still one that the terminal means: it is born with the signal blocked, and Git leaves
// it so.
func startApart(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
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
