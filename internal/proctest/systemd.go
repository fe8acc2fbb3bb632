package proctest

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Systemd is the other end of sd_notify: its messages as they come.
func Systemd(t *testing.T) (socket string, next func() string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "notify")
	conn := Must(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}))(t)
	t.Cleanup(func() { conn.Close() })
	return socket, func() string {
		t.Helper()
		Must(0, conn.SetReadDeadline(time.Now().Add(time.Minute)))(t)
		message := make([]byte, 4096)
		return string(message[:Must(conn.Read(message))(t)])
	}
}

// Awaits reads messages until one has the word.
func Awaits(t *testing.T, next func() string, word string) string {
	t.Helper()
	for {
		if message := next(); strings.Contains("\n"+message+"\n", "\n"+word+"\n") {
			return message
		}
	}
}
