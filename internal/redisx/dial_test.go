package redisx_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/redisx"
	"lockstep/internal/testenv"
)

// droppingAddress returns an address whose packets are dropped: its queue of connections is full.
func droppingAddress(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
	for range 10 {
		c, err := net.DialTimeout("tcp", address, 2*time.Second)
		if os.IsTimeout(err) {
			return address
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Skip("connections beyond the backlog are accepted")
	return ""
}

// TestAddressThatDropsPacketsFailsBeforeACallerGivesUp gives up a dial sooner than the requests that wait for it: HTTP clients and probes
// wait for 10 s.
func TestAddressThatDropsPacketsFailsBeforeACallerGivesUp(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	server, err := redisx.Parse(droppingAddress(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	client := server.Open()
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
	defer cancel()
	err = client.Ping(ctx).Err()
	if text := redisx.Explain(server, err).Error(); ctx.Err() != nil || !redisx.Unavailable(err) || !strings.Contains(text, "does not answer; start it, or name another") {
		t.Errorf("%v: %s", ctx.Err(), text)
	}
}
