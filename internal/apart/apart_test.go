package apart_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"lockstep/internal/apart"
)

const underFire = "LOCKSTEP_TEST_UNDER_FIRE"

// As a terminal does at Ctrl-C, a process interrupts all that are of its group while it starts others.
func TestCtrlCReachesNoProcessThatIsStartedMeanwhile(t *testing.T) {
	if os.Getenv(underFire) == "" {
		cmd := exec.Command(os.Args[0], "-test.run", t.Name())
		cmd.Env = append(os.Environ(), underFire+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // so that we are not among them
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
	for i := range 200 {
		cmd := exec.Command("sh", "-c", fmt.Sprintf("exit %d", i%100))
		if err := apart.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != i%100 {
			t.Fatalf("process %d: %v", i, cmd.ProcessState)
		}
	}
	<-heard
}
