package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// systemd is the other end of sd_notify: its messages as they come.
func systemd(t *testing.T) (socket string, next func() string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "notify")
	conn := must(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}))(t)
	t.Cleanup(func() { conn.Close() })
	return socket, func() string {
		t.Helper()
		must(0, conn.SetReadDeadline(time.Now().Add(time.Minute)))(t)
		message := make([]byte, 4096)
		return string(message[:must(conn.Read(message))(t)])
	}
}

// awaits reads messages until one has the word.
func awaits(t *testing.T, next func() string, word string) string {
	t.Helper()
	for {
		if message := next(); strings.Contains("\n"+message+"\n", "\n"+word+"\n") {
			return message
		}
	}
}
