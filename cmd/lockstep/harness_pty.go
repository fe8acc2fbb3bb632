package main

import (
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/internal/logtest"
)

// pty is a terminal: what is written to its file can be read from the buffer.
type pty struct {
	file     *os.File
	keyboard io.Writer // what is typed
	seen     *logtest.Buffer
	done     chan struct{} // closed once all has been read
}

func openPTY(t *testing.T) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no terminals here: %v", err)
	}
	fd := int(master.Fd())
	must(0, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))(t)
	n := must(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)
	must(0, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}))(t)
	p := &pty{file: must(os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0))(t), keyboard: master, seen: &logtest.Buffer{}, done: make(chan struct{})}
	go func() {
		_, _ = io.Copy(p.seen, master) // to the error that says that nobody has the terminal open any more
		close(p.done)
	}()
	t.Cleanup(func() { _ = p.file.Close(); <-p.done; _ = master.Close() })
	return p
}
