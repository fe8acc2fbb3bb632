package server_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/internal/forge"
	"lockstep/internal/intake"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
)

// serveTwoSources serves the sources hub and lab, which has a token, with the budget for bodies of a real server.
func serveTwoSources(t *testing.T, in server.Intake) (addr string) {
	t.Helper()
	srv := httptest.NewServer(documented(t, twoSources(t, in)))
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func twoSources(t *testing.T, in server.Intake) server.Config {
	t.Helper()
	sources, err := forge.LoadSources("", []string{
		"LOCKSTEP_HOOK_HUB_FORGE=github", "LOCKSTEP_HOOK_HUB_SECRET=" + hubSecret, "LOCKSTEP_HOOK_LAB_FORGE=gitlab", "LOCKSTEP_HOOK_LAB_SECRET=" + hubSecret,
	})
	if err != nil {
		t.Fatal(err)
	}
	return server.Config{Hooks: &server.Hooks{Sources: sources, Intake: in}, Metrics: telemetry.New().Handler(), Log: slog.New(slog.DiscardHandler)}
}

var acceptAll = intakeFunc(func(d forge.Delivery) (intake.Outcome, error) {
	return intake.Outcome{Result: intake.Accepted, Delivery: d.ID, Changes: 1}, nil
})

// forged returns a header with a well-formed signature of nothing in particular.
func forged() http.Header {
	return http.Header{"X-Github-Event": {"push"}, "X-Hub-Signature-256": {"sha256=" + strings.Repeat("ab", 32)}}
}

// labHeader returns the header of a delivery to the source lab.
func labHeader() http.Header {
	return http.Header{"X-Gitlab-Event": {"Note Hook"}, "X-Gitlab-Token": {hubSecret}}
}

// openDelivery sends the header of a delivery of size bytes, and the beginning of its body. from is the client's address.
func openDelivery(t *testing.T, addr, from, source string, header http.Header, size int, begin string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn := testenv.Must(dialer.Dial("tcp", addr))(t)
	t.Cleanup(func() { _ = conn.Close() })
	fmt.Fprintf(conn, "POST /hooks/%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n", source, size)
	_ = header.Write(conn)
	_, _ = io.WriteString(conn, "\r\n"+begin)
	return conn
}

// statusOf reads a response, and returns 0 if there is none within the time.
func statusOf(conn net.Conn, within time.Duration) int {
	_ = conn.SetReadDeadline(time.Now().Add(within))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestIdleConnectionsDelayNoDelivery opens thousands of connections that send a header and no body, or little of it. It is
// not parallel: it needs many of the process's file descriptors, and time.
func TestIdleConnectionsDelayNoDelivery(t *testing.T) {
	const connections = 4200 // times 64 KiB is more than the budget
	for name, tc := range map[string]struct {
		header http.Header
		begin  string
		status int // of an idle connection, soon; 0 for none
	}{
		"unsigned":                      {http.Header{"X-Github-Event": {"push"}}, "", http.StatusUnauthorized},
		"forged, with a part of a body": {forged(), strings.Repeat(" ", 2000), 0},
	} {
		t.Run(name, func(t *testing.T) {
			addr := serveTwoSources(t, acceptAll)
			var idle []net.Conn
			for range connections {
				idle = append(idle, openDelivery(t, addr, "127.0.0.1", "hub", tc.header, 25<<20, tc.begin))
			}
			for _, conn := range idle[:10] {
				if tc.status != 0 {
					if status := statusOf(conn, time.Minute); status != tc.status {
						t.Errorf("an idle connection: %d, want %d", status, tc.status)
					}
				}
			}
			for source, header := range map[string]http.Header{"hub": hubHeader(pushOfWidgets, "push", "d1"), "lab": labHeader()} {
				fastest := time.Hour // the machine may be slow at times
				for range 20 {
					start := time.Now()
					if status := statusOf(openDelivery(t, addr, "127.0.0.1", source, header, len(pushOfWidgets), pushOfWidgets), time.Minute); status != http.StatusAccepted {
						t.Fatalf("a signed delivery to %s: %d", source, status)
					}
					fastest = min(fastest, time.Since(start))
				}
				if fastest > time.Second {
					t.Errorf("a signed delivery to %s took %v at best", source, fastest)
				}
			}
			for _, conn := range idle {
				_ = conn.Close()
			}
		})
	}
}

// TestShareOfTheBudget fills the share of one sender with large deliveries that are in flight.
func TestShareOfTheBudget(t *testing.T) {
	t.Parallel()
	held, release := make(chan struct{}, 100), make(chan struct{})
	large := pushOfWidgets + strings.Repeat(" ", 20<<20)
	addr := serveTwoSources(t, intakeFunc(func(d forge.Delivery) (intake.Outcome, error) {
		if d.ID == "large" {
			held <- struct{}{}
			<-release
		}
		return acceptAll(d)
	}))
	header, small := hubHeader(large, "push", "large"), hubHeader(pushOfWidgets, "push", "small")
	var sending sync.WaitGroup
	send := func(from, source string, header http.Header, body string) int {
		conn := openDelivery(t, addr, from, source, header, len(body), "")
		sending.Go(func() { _, _ = io.WriteString(conn, body) }) // the server may answer and close before the end
		status := statusOf(conn, 5*time.Minute)                  // the race detector makes large bodies slow
		_ = conn.Close()
		return status
	}
	accepted := make(chan int, 100)
	flying := 0
fill:
	for range 20 {
		sending.Go(func() { accepted <- send("127.0.0.1", "hub", header, large) })
		select {
		case <-held:
			flying++
		case status := <-accepted:
			if status != http.StatusTooManyRequests {
				t.Errorf("above the share: %d", status)
			}
			break fill
		}
	}
	if flying < 6 || flying > 9 {
		t.Errorf("%d deliveries of 20 MiB in flight, want three quarters of 256 MiB at most, and not much less", flying)
	}
	for what, status := range map[string]int{
		"another sender":             send("127.0.0.2", "hub", small, pushOfWidgets),
		"another source":             send("127.0.0.1", "lab", labHeader(), pushOfWidgets),
		"another source and sender":  send("127.0.0.3", "lab", labHeader(), pushOfWidgets),
		"another source, large body": send("127.0.0.1", "lab", labHeader(), large[:8<<20]),
		"another sender, large body": send("127.0.0.2", "hub", hubHeader(large[:4<<20], "push", "small"), large[:4<<20]),
	} {
		if status != http.StatusAccepted {
			t.Errorf("%s: %d", what, status)
		}
	}
	close(release)
	for range flying {
		if status := <-accepted; status != http.StatusAccepted {
			t.Errorf("a delivery within the share: %d", status)
		}
	}
	if status := send("127.0.0.1", "hub", header, large); status != http.StatusAccepted {
		t.Errorf("after the budget is released: %d", status)
	}
	sending.Wait()
}

// pipes is a listener whose connections are in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p pipes) Close() error   { close(p.done); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// TestSlowBodies sends bodies at different rates, on a clock of the test.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		chunk    int // bytes per half second
		size     int
		status   int
		from, to time.Duration // until the response
	}{
		"nothing":              {0, 10_000, http.StatusRequestTimeout, 5 * time.Second, 6 * time.Second},
		"a byte at a time":     {1, 10_000, http.StatusRequestTimeout, 5 * time.Second, 6 * time.Second},
		"slow but steady":      {64 << 10, 2 << 20, http.StatusAccepted, 15 * time.Second, 17 * time.Second},
		"steady, for too long": {64 << 10, 10 << 20, http.StatusRequestTimeout, 29 * time.Second, 31 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := pipes{make(chan net.Conn), make(chan struct{})}
				srv := &http.Server{Handler: documented(t, twoSources(t, acceptAll))}
				served := make(chan error, 1)
				go func() { served <- srv.Serve(listener) }()
				client, peer := net.Pipe()
				listener.conns <- peer
				start := time.Now()
				body := pushOfWidgets + strings.Repeat(" ", tc.size-len(pushOfWidgets))
				var sending sync.WaitGroup
				sending.Go(func() {
					fmt.Fprintf(client, "POST /hooks/hub HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n", len(body))
					_ = hubHeader(body, "push", "d1").Write(client)
					_, _ = io.WriteString(client, "\r\n")
					for rest := body; rest != "" && tc.chunk > 0; {
						n := min(tc.chunk, len(rest))
						if _, err := io.WriteString(client, rest[:n]); err != nil {
							return
						}
						rest = rest[n:]
						time.Sleep(time.Second / 2)
					}
				})
				status := statusOf(client, time.Minute)
				if took := time.Since(start); status != tc.status || took < tc.from || took > tc.to {
					t.Errorf("%d after %v, want %d after %v to %v", status, took, tc.status, tc.from, tc.to)
				}
				_ = client.Close()
				sending.Wait()
				_ = srv.Close()
				<-served
			})
		})
	}
}
