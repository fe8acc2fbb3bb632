package workspace

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarder passes signals of this process on to another.
type forwarder struct {
	signals chan os.Signal
	running sync.WaitGroup
}

// newForwarder keeps the signals that ask a program to do something, until [forwarder.forward].
func newForwarder() *forwarder {
	f := &forwarder{signals: make(chan os.Signal, 16)}
	for _, s := range []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	} {
		if !signal.Ignored(s) { // as with nohup, for the command too
			signal.Notify(f.signals, s)
		}
	}
	return f
}

func (f *forwarder) forward(to *os.Process) {
	f.running.Go(func() {
		for s := range f.signals {
			if !fromTerminal(s) {
				_ = to.Signal(s)
			}
		}
	})
}

// stop ends forwarding. The signals are handled as before.
func (f *forwarder) stop() {
	signal.Stop(f.signals)
	close(f.signals)
	f.running.Wait()
}

// fromTerminal reports whether a signal probably came from the terminal, which sends it to all processes in
// the foreground.
func fromTerminal(s os.Signal) bool {
	if s != syscall.SIGINT && s != syscall.SIGQUIT {
		return false
	}
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer terminal.Close()
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
