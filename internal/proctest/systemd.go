package proctest

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// NotifySocket opens a socket for NOTIFY_SOCKET. Call next to receive the next sd_notify message.
func NotifySocket(t *testing.T) (socket string, next func() string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "notify")
	conn := Must(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return socket, func() string {
		t.Helper()
		Must(0, conn.SetReadDeadline(time.Now().Add(time.Minute)))(t)
		message := make([]byte, 4096)
		return string(message[:Must(conn.Read(message))(t)])
	}
}

// AwaitNotify reads sd_notify messages until one contains the line, and returns that message.
func AwaitNotify(t *testing.T, next func() string, line string) string {
	t.Helper()
	for {
		if message := next(); strings.Contains("\n"+message+"\n", "\n"+line+"\n") {
			return message
		}
	}
}
