package proctest

import (
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/internal/logtest"
)

// Pty is a terminal: what is written to its file can be read from the buffer.
type Pty struct {
	File     *os.File
	Keyboard io.Writer // what is typed
	Seen     *logtest.Buffer
	Done     chan struct{} // closed once all has been read
}

func OpenPTY(t *testing.T) *Pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no terminals here: %v", err)
	}
	fd := int(master.Fd())
	Must(0, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))(t)
	n := Must(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)
	Must(0, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}))(t)
	p := &Pty{File: Must(os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0))(t), Keyboard: master, Seen: &logtest.Buffer{}, Done: make(chan struct{})}
	go func() {
		_, _ = io.Copy(p.Seen, master) // to the error that says that nobody has the terminal open any more
		close(p.Done)
	}()
	t.Cleanup(func() { _ = p.File.Close(); <-p.Done; _ = master.Close() })
	return p
}
