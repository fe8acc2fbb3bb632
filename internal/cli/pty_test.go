package cli

import (
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/internal/logtest"
	"lockstep/internal/proctest"
)

// pty is a pseudo-terminal of 24 lines and 100 columns.
type pty struct {
	File     *os.File        // the program's side
	Keyboard io.Writer       // input to the program
	Output   *logtest.Buffer // what the program wrote to File
	Done     chan struct{}   // closed once File is closed and Output is complete
}

// openPTY opens a pseudo-terminal until the end of the test. It skips the test if there is no /dev/ptmx.
func openPTY(t *testing.T) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs a pseudo-terminal: %v", err)
	}
	fd := int(master.Fd())
	proctest.Must(0, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))(t)
	n := proctest.Must(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)
	proctest.Must(0, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}))(t)
	file := proctest.Must(os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	p := &pty{File: file, Keyboard: master, Output: &logtest.Buffer{}, Done: make(chan struct{})}
	go func() {
		_, _ = io.Copy(p.Output, master) // fails once no process has the terminal open
		close(p.Done)
	}()
	t.Cleanup(func() { _ = p.File.Close(); <-p.Done; _ = master.Close() })
	return p
}
