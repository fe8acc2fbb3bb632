package notify

import (
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/internal/egress"
	"lockstep/internal/watch"
)

// A dead HTTP/2 connection is abandoned. Posts share a connection, and the timeout of a single post does not close
// it.
func TestDeadHTTP2ConnectionIsAbandoned(t *testing.T) {
	w := newWorld(t)
	app := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		if req.ProtoMajor != 2 {
			t.Errorf("request uses %s", req.Proto)
		}
	}))
	app.EnableHTTP2 = true
	app.StartTLS()
	defer app.Close()
	var first atomic.Bool
	dead := make(chan struct{})
	url := "https://" + relay(t, app.Listener.Addr().String(), func() (until <-chan struct{}) {
		if first.CompareAndSwap(false, true) {
			return dead
		}
		return nil
	})
	w.signsFor(url, app.URL)
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	cfg := w.config()
	post := func(n *Notifier, url string) error {
		_, err := n.post(t.Context(), watch.Watch{NotifyURL: url, NotifySecret: "signer"}, item{ID: "msg_1", Body: "{}"})
		return err
	}
	if err := post(must(New(cfg))(t), app.URL); err == nil || !strings.Contains(err.Error(), "not trusted") {
		t.Errorf("without the authority: %v", err)
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: app.Certificate().Raw})
	must(0, os.WriteFile(caFile, authority, 0o600))(t)
	cfg.Trust, cfg.timeout = must(egress.NewTrust(caFile))(t), 3*time.Second
	n := must(New(cfg))(t)
	defer n.client.CloseIdleConnections()
	ask := func() error { return post(n, url) }
	must(0, ask())(t)
	close(dead)
	if err := ask(); err == nil {
		t.Error("the connection still works")
	}
	err := ask()
	for tries := 1; err != nil && tries < 5; tries++ { // the machine may be slow temporarily
		err = ask()
	}
	if err != nil {
		t.Errorf("it is still used: %v", err)
	}
}

// relay forwards connections to a server. Once until is closed, a connection stays open but forwards nothing.
func relay(t *testing.T, to string, accepted func() (until <-chan struct{})) (address string) {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	var open sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); open.Wait() })
	open.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			until := accepted()
			t.Cleanup(func() { _, _ = near.Close(), far.Close() })
			pass := func(to io.Writer, from io.Reader) {
				buf := make([]byte, 32<<10)
				for {
					n, err := from.Read(buf)
					select {
					case <-until:
					default:
						_, _ = to.Write(buf[:n])
					}
					if err != nil {
						return
					}
				}
			}
			open.Go(func() { pass(far, near) })
			open.Go(func() { pass(near, far) })
		}
	})
	return listener.Addr().String()
}
