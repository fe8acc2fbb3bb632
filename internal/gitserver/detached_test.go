package gitserver

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
)

const underFire = "LOCKSTEP_TEST_UNDER_FIRE"

// Like a terminal on Ctrl-C, a process interrupts its process group while it starts others.
func TestCtrlCDoesNotReachGitDuringStart(t *testing.T) {
	if os.Getenv(underFire) == "" {
		cmd := exec.Command(os.Args[0], "-test.run", t.Name())
		cmd.Env = append(os.Environ(), underFire+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // excludes the test itself
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, os.Interrupt)
	over := make(chan struct{})
	go func() {
		for {
			select {
			case <-over:
				return
			default:
				_ = syscall.Kill(0, syscall.SIGINT)
			}
		}
	}()
	defer close(over)
	for range 100 {
		if _, err := Git(t.Context(), "/", "", "version"); err != nil {
			t.Fatal(err)
		}
	}
	<-heard
}
