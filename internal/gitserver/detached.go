package gitserver

import (
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// startDetached starts cmd in a new process group, so that Ctrl-C does not interrupt it. It blocks SIGINT
// meanwhile, because the terminal could interrupt the process between fork and setpgid. Git keeps the signal
// blocked.
func startDetached(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	runtime.LockOSThread() // the signal mask belongs to the thread, and the process inherits it
	defer runtime.UnlockOSThread()
	var interrupt, before unix.Sigset_t
	interrupt.Val[0] = 1 << (unix.SIGINT - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &interrupt, &before); err != nil {
		return err
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }()
	return cmd.Start()
}
