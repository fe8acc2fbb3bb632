package volume

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// TestErrorsHideRemoteText uses a remote that violates HTTP in ways that net/http quotes in its errors.
func TestErrorsHideRemoteText(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"no HTTP":        "echo " + secret + "\r\n\r\n",
		"a bad status":   "HTTP/1.1 " + secret + "\r\n\r\n",
		"a bad header":   "HTTP/1.1 200 OK\r\n" + secret + "\r\n\r\n",
		"a bad length":   "HTTP/1.1 200 OK\r\nContent-Length: " + secret + "\r\n\r\n",
		"a bad encoding": "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + secret + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			req := w.request("")
			req.URL = "http://" + answerRaw(t, answer) + "/acme/widgets"

			_, err := w.volume.Sync(t.Context(), req)

			testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error repeats the remote: %v", err)
			}
		})
	}
}

// answerRaw answers every connection with the same bytes.
func answerRaw(t *testing.T, answer string) (address string) {
	t.Helper()
	listener := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, answer)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
	return listener.Addr().String()
}

func TestUntrustedCertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := httptest.NewUnstartedServer(nil)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	defer server.Close()
	req := w.request("")
	req.URL = server.URL + "/acme/widgets"
	_, err := w.volume.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)
	if !strings.Contains(err.Error(), "certificate") || !strings.Contains(err.Error(), "authority") {
		t.Errorf("the error does not say what is wrong: %v", err)
	}
}

func TestInvalidDefaultBranches(t *testing.T) {
	t.Parallel()
	for name, branch := range map[string]string{
		"two lines":   "refs/heads/a\nb",
		"no ref":      "main",
		"HEAD itself": "HEAD",
		"escaping":    "refs/heads/../../x",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const hash = "1111111111111111111111111111111111111111"
			line := func(s string) string { return fmt.Sprintf("%04x%s\n", len(s)+5, s) }
			advert := line("# service=git-upload-pack") + "0000" +
				line(hash+" HEAD\x00symref=HEAD:"+branch+" shallow") + line(hash+" main") + line(hash+" HEAD") + line(hash+" refs/heads/main") + "0000"
			server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
				_, _ = io.WriteString(rw, advert)
			}))
			defer server.Close()
			w := newWorld(t)
			req := w.request("")
			req.URL = server.URL + "/acme/widgets"

			_, err := w.volume.Sync(t.Context(), req)

			testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
			if strings.Contains(err.Error(), `"`) {
				t.Errorf("the error repeats the remote: %v", err)
			}
		})
	}
}

// TestErrorHidesRedirectHost checks that errors do not contain a host name chosen by the remote.
func TestErrorHidesRedirectHost(t *testing.T) {
	t.Parallel()
	moved := httptest.NewServer(http.RedirectHandler("http://"+secret+".invalid/info/refs", http.StatusFound))
	defer moved.Close()
	w := newWorld(t)
	req := w.request("")
	req.URL = moved.URL + "/acme/widgets"
	_, err := w.volume.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)
	if strings.Contains(err.Error(), secret) {
		t.Errorf("the error repeats the remote: %v", err)
	}
}
