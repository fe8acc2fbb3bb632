package wire

import (
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestCAFileIsReadAgain connects by TLS to a remote, to a host that the operator configures, and to a proxy for SSH, while
// the file of authorities is replaced. A mounted Secret is replaced by a link to another folder.
func TestCAFileIsReadAgain(t *testing.T) {
	server, _ := startGit(t, gitserver.WithTLS())
	ssh := testenv.Must(server.StartSSH())(t)
	t.Cleanup(ssh.Close)
	proxy := httptest.NewTLSServer(connectTo(ssh.Addr()))
	t.Cleanup(proxy.Close)
	ofServer := string(server.CA())
	ofProxy := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: proxy.Certificate().Raw}))

	list := func(url string, auth Auth) func(*Network) error {
		return func(n *Network) error {
			session, err := n.DialAndList(t.Context(), url, auth, false, Limits{Timeout: time.Minute}, "refs/heads/")
			if err == nil {
				session.Close()
			}
			return err
		}
	}
	for name, tc := range map[string]struct {
		proxy, right, wrong string
		connect             func(*Network) error
	}{
		"remote": {"", ofServer, ofProxy, list(server.URL(widgets), Auth{})},
		"host of the operator": {"", ofServer, ofProxy, func(n *Network) error {
			client := http.Client{Transport: n.Transport()}
			res, err := client.Get(server.URL(widgets) + "/info/refs?service=git-upload-pack")
			if err == nil {
				_, _ = io.Copy(io.Discard, res.Body) // so that the connection is kept
				_ = res.Body.Close()
			}
			return err
		}},
		"proxy for SSH": {proxy.URL, ofProxy, ofServer, list(ssh.URL(widgets), Auth{SSHKey: ssh.ClientKey, KnownHosts: ssh.KnownHosts()})},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "ca.pem")
			testenv.Must(0, os.Symlink("..data/ca.pem", file))(t)
			mount := func(version, pem string) {
				testenv.Must(0, os.Mkdir(filepath.Join(dir, version), 0o700))(t)
				testenv.Must(0, os.WriteFile(filepath.Join(dir, version, "ca.pem"), []byte(pem), 0o600))(t)
				testenv.Must(0, os.Symlink(version, filepath.Join(dir, "..next")))(t)
				testenv.Must(0, os.Rename(filepath.Join(dir, "..next"), filepath.Join(dir, "..data")))(t)
			}
			mount("1", tc.wrong)
			n := testenv.Must(NewNetwork(Config{CAFile: file, Proxy: tc.proxy}))(t)
			t.Cleanup(n.Close)
			if err := tc.connect(n); err == nil {
				t.Fatal("connected without the authority")
			}
			mount("2", tc.wrong+tc.right)
			if err := tc.connect(n); err != nil {
				t.Fatalf("the authority was added: %v", err)
			}
			mount("3", tc.wrong)
			if err := tc.connect(n); err == nil {
				t.Error("connected although the authority was removed")
			}
			mount("4", "nothing")
			err := tc.connect(n)
			if err == nil || !strings.Contains(err.Error(), "ca-file: no certificate in "+file) {
				t.Errorf("without certificates: %v", err)
			}
			if class := events.ClassOf(err); name != "host of the operator" && (class != events.ClassConfig || events.DispositionOf(err) != events.Retryable) {
				t.Errorf("without certificates: %s", class)
			}
			mount("5", tc.right)
			if err := tc.connect(n); err != nil {
				t.Errorf("corrected: %v", err)
			}
		})
	}
}

// connectTo is a proxy that connects to address whatever the request names.
func connectTo(address string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		far, err := net.Dial("tcp", address)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer far.Close()
		near, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer near.Close()
		_, _ = io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(far, buffered); _ = far.Close() }() // ends with near
		_, _ = io.Copy(near, far)
	}
}
