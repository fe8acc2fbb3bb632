package feed

import (
	"errors"
	"net"
	"syscall"
)

// hasLeft reports whether the client has closed its connection, without waiting. It discards what a client sends.
func hasLeft(conn net.Conn) (left bool) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false // a write will show it
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	var discarded [256]byte
	err = raw.Read(func(fd uintptr) bool {
		n, err := syscall.Read(int(fd), discarded[:])
		left = n == 0 && err == nil || err != nil && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR)
		return true
	})
	return left || err != nil
}

// openFiles returns how many files this process may open.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<30 {
		return 1 << 30
	}
	return int(limit.Cur)
}
