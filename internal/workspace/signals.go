package workspace

import (
	"os"
	"os/signal"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that ask a program to do something.
var forwarded = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2}

// forwarder passes signals of this process on to another.
type forwarder struct {
	signals chan os.Signal
	process chan *os.Process
	done    chan struct{}
	ended   chan struct{}
}

// forwardSignals keeps the signals for the process that is given to [forwarder.to].
func forwardSignals() *forwarder {
	f := &forwarder{make(chan os.Signal, 16), make(chan *os.Process, 1), make(chan struct{}), make(chan struct{})}
	for _, s := range forwarded {
		if !signal.Ignored(s) { // as with nohup, for the command too
			signal.Notify(f.signals, s)
		}
	}
	go f.run()
	return f
}

func (f *forwarder) to(p *os.Process) { f.process <- p }

func (f *forwarder) run() {
	defer close(f.ended)
	var process *os.Process
	select {
	case process = <-f.process:
	case <-f.done:
		return
	}
	for {
		select {
		case s := <-f.signals:
			if !fromTerminal(s) {
				_ = process.Signal(s)
			}
		case <-f.done:
			return
		}
	}
}

// stop ends forwarding. The signals are handled as before.
func (f *forwarder) stop() {
	signal.Stop(f.signals)
	close(f.done)
	<-f.ended
}

// fromTerminal reports whether a signal probably came from the terminal, which sends it to all processes in the foreground.
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

// DieBy ends this process by the signal that ended a command, so that the caller sees the same. It returns if the signal does not
// end it, as for the first process of a container.
func DieBy(s syscall.Signal) {
	if os.Getpid() == 1 {
		return
	}
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) // the command has dumped its core already
	// Go's runtime would print a stack trace on some signals and ignore others, also after signal.Reset.
	var byDefault [4]uint64 // sigaction with SIG_DFL
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	if unix.Kill(unix.Getpid(), s) == nil {
		time.Sleep(time.Second) // another thread may get the signal
	}
}
