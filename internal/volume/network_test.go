package volume

import (
	"bufio"
	"encoding/binary"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// fakeProxy is an HTTP proxy, with CONNECT and plain requests, and a SOCKS5 proxy. It connects all names to the target.
type fakeProxy struct {
	addr   string
	target string // host:port to connect to, for every name
	login  string // required user:password, or ""

	mu    sync.Mutex
	asked []string
	wg    sync.WaitGroup
}

func startProxy(t *testing.T, target, login string) *fakeProxy {
	t.Helper()
	listener := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	p := &fakeProxy{addr: listener.Addr().String(), target: target, login: login}
	p.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.wg.Wait()
	})
	return p
}

func (p *fakeProxy) saw() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.asked...)
}

func (p *fakeProxy) serve(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	first, err := reader.Peek(1)
	if err != nil {
		return
	}
	ok := false
	if first[0] == 5 {
		ok = p.socks(conn, reader)
	} else {
		ok = p.connect(conn, reader)
	}
	if !ok {
		return
	}
	target, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer target.Close()
	p.wg.Go(func() {
		_, _ = io.Copy(target, reader)
		_ = target.Close()
	})
	_, _ = io.Copy(conn, target)
}

func (p *fakeProxy) note(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, what)
}

func (p *fakeProxy) connect(conn net.Conn, reader *bufio.Reader) bool {
	req, err := http.ReadRequest(reader)
	if err != nil {
		return false
	}
	user, password, _ := (&http.Request{Header: http.Header{"Authorization": req.Header["Proxy-Authorization"]}}).BasicAuth()
	if p.login != "" && user+":"+password != p.login {
		_, _ = io.WriteString(conn, "HTTP/1.1 407 "+secret+"\r\nContent-Length: 0\r\n\r\n")
		return false
	}
	if req.Method != http.MethodConnect {
		_, _ = io.WriteString(conn, "HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\n\r\n")
		return false
	}
	p.note(req.Host)
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
	return true
}

func (p *fakeProxy) socks(conn net.Conn, reader *bufio.Reader) bool {
	head := make([]byte, 2)
	if _, err := io.ReadFull(reader, head); err != nil {
		return false
	}
	_, _ = io.CopyN(io.Discard, reader, int64(head[1]))
	_, _ = conn.Write([]byte{5, 0})
	request := make([]byte, 5) // version, command, reserved, address type, address length
	if _, err := io.ReadFull(reader, request); err != nil || request[3] != 3 {
		return false
	}
	name := make([]byte, int(request[4])+2)
	if _, err := io.ReadFull(reader, name); err != nil {
		return false
	}
	p.note(string(name[:len(name)-2]) + ":" + strconv.Itoa(int(binary.BigEndian.Uint16(name[len(name)-2:]))))
	_, _ = conn.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	return true
}

// secureWorld returns a world whose server uses TLS, and the file with its CA certificate.
func secureWorld(t *testing.T) (w *world, caFile string) {
	t.Helper()
	w = newWorld(t, gitserver.WithTLS())
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	testenv.Must(0, os.WriteFile(caFile, w.git.CA(), 0o600))(t)
	return w, caFile
}

func TestCustomCA(t *testing.T) {
	t.Parallel()
	w, caFile := secureWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	_, err := w.trySync("")
	testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)
	w.volume = w.open(t.TempDir(), Config{Net: wire.Config{CAFile: caFile}})
	w.sync("")
	w.mustBeSound(widgets, commit)
}

func TestProxy(t *testing.T) {
	t.Parallel()
	w, caFile := secureWorld(t)
	server := w.withSSH()
	commit := w.create(map[string]string{"a": "1"})
	for name, tc := range map[string]struct{ scheme, login, target string }{
		"CONNECT":                 {"http", "", hostOf(t, w.git.URL(widgets))},
		"CONNECT with a password": {"http", "ada:" + secret, hostOf(t, w.git.URL(widgets))},
		"SOCKS5":                  {"socks5", "", hostOf(t, w.git.URL(widgets))},
		"SSH by CONNECT":          {"http", "ada:" + secret, server.Addr()},
		"SSH by SOCKS5":           {"socks5", "", server.Addr()},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProxy(t, tc.target, tc.login)
			via := tc.scheme + "://" + p.addr
			if tc.login != "" {
				via = tc.scheme + "://" + tc.login + "@" + p.addr
			}
			w.volume = w.open(t.TempDir(), Config{Net: wire.Config{Proxy: via, CAFile: caFile, Hosts: []string{"git.test"}}})
			defer w.volume.Close()
			req := w.request("")
			req.URL = "https://git.test/acme/widgets.git"
			want := "git.test:443"
			if strings.HasPrefix(name, "SSH") {
				req = w.sshRequest(server, "")
				req.URL, want = "ssh://git@git.test/acme/widgets.git", "git.test:22"
				req.Auth.KnownHosts = "git.test " + strings.SplitN(server.KnownHosts(), " ", 2)[1]
			}
			req.Foreign = true // the name must be allowed explicitly: the proxy may resolve it to an internal host

			testenv.Must(w.volume.Sync(t.Context(), req))(t)

			w.mustBeSound(widgets, commit)
			for _, asked := range p.saw() {
				if asked != want {
					t.Errorf("the proxy was asked for %s", asked)
				}
			}
			if len(p.saw()) == 0 {
				t.Error("the proxy was not asked")
			}
			for name, class := range map[string]events.Class{"other.test": events.ClassConfig, "169.254.169.254": events.ClassConfig} {
				before := len(p.saw())
				other := req
				other.URL = strings.Replace(req.URL, "git.test", name, 1)
				other.Repo, other.Fence = repoPath(t, "acme/"+name), 1
				_, err := w.volume.Sync(t.Context(), other)
				testenv.MustFail(t, err, class, events.Permanent)
				if len(p.saw()) != before {
					t.Errorf("the proxy was asked for %s", name)
				}
			}
		})
	}
}

func TestProxyRefusal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.withSSH()
	p := startProxy(t, server.Addr(), "ada:other")
	w.volume = w.open(t.TempDir(), Config{Net: wire.Config{Proxy: "http://ada:" + secret + "@" + p.addr}})
	for _, rawURL := range []string{"https://git.test/acme/widgets", "ssh://git@git.test/acme/widgets"} {
		req := w.sshRequest(server, "")
		req.Auth.Password = secret
		req.URL = rawURL
		_, err := w.volume.Sync(t.Context(), req)
		testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)
		if !strings.Contains(err.Error(), "proxy refused") || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", rawURL, err)
		}
	}
}

// redirectTarget is the target of redirects. It lists refs and records every request.
type redirectTarget struct {
	mu       sync.Mutex
	requests []*http.Request
}

func (t *redirectTarget) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests = append(t.requests, r)
	w.Header().Set("Set-Cookie", "session="+secret)
	if r.Method == http.MethodGet {
		_, _ = io.WriteString(w, "001e# service=git-upload-pack\n0000"+
			"004a1111111111111111111111111111111111111111 refs/heads/main\x00side-band-64k0000")
	}
}

// TestNoCredentialFollowsARedirect redirects to another host or port, with each kind of credential, on each request.
func TestNoCredentialFollowsARedirect(t *testing.T) {
	t.Parallel()
	for name, auth := range map[string]wire.Auth{
		"basic":  {Username: "ada", Password: secret},
		"bearer": {BearerToken: secret},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			there := &redirectTarget{}
			other := httptest.NewServer(there)
			defer other.Close()
			here := &redirectTarget{}
			mux := http.NewServeMux()
			mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
				here.ServeHTTP(httptest.NewRecorder(), r)
				w.Header().Set("Set-Cookie", "session="+secret)
				http.Redirect(w, r, other.URL+r.URL.RequestURI(), http.StatusFound)
			})
			first := httptest.NewServer(mux)
			defer first.Close()
			w := newWorld(t)
			w.volume = w.open(t.TempDir(), Config{Net: wire.Config{Hosts: []string{"127.0.0.1"}}})
			req := w.request("main")
			req.URL, req.Auth = first.URL+"/acme/widgets.git", auth

			_, err := w.volume.Sync(t.Context(), req)

			if err == nil {
				t.Fatal("no error")
			}
			methods := ""
			for _, r := range there.requests {
				methods += r.Method + " "
				if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" || strings.Contains(r.URL.String(), secret) {
					t.Errorf("%s carries a credential", r.Method)
				}
			}
			if methods != "GET POST " || len(here.requests) != 1 || here.requests[0].Header.Get("Authorization") == "" {
				t.Errorf("there: %s; here: %d requests; error: %v", methods, len(here.requests), err)
			}
		})
	}
}

func TestForbiddenRedirects(t *testing.T) {
	t.Parallel()
	plain := &redirectTarget{}
	http1 := httptest.NewServer(plain)
	defer http1.Close()
	w, caFile := secureWorld(t)
	w.volume = w.open(t.TempDir(), Config{Net: wire.Config{CAFile: caFile, Hosts: []string{"127.0.0.1"}}})
	for _, location := range []string{
		http1.URL + "/acme/widgets.git/info/refs", "file:///etc/passwd", "git://127.0.0.1/info/refs", "ssh://git@127.0.0.1/info/refs",
		"gopher://127.0.0.1/info/refs", "//", "https:///info/refs",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Location", location)
			rw.WriteHeader(http.StatusFound)
		}))
		req := w.request("main")
		req.URL, req.Auth = server.URL+"/acme/widgets", wire.Auth{BearerToken: secret}
		if strings.HasPrefix(location, "http:") { // from https
			req.URL = viaTLS(t, w, location)
		}
		_, err := w.volume.Sync(t.Context(), req)
		if err == nil || events.DispositionOf(err) != events.Retryable && events.ClassOf(err) != events.ClassConfig {
			t.Errorf("%s: %v", location, err)
		}
		server.Close()
	}
	if len(plain.requests) != 0 {
		t.Error("a redirect from https to http was followed")
	}
}

// viaTLS returns the URL of a TLS server that redirects to location, and makes the world trust its certificate.
func viaTLS(t *testing.T, w *world, location string) string {
	t.Helper()
	server := httptest.NewTLSServer(http.RedirectHandler(location, http.StatusFound))
	t.Cleanup(server.Close)
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	testenv.Must(0, os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))(t)
	w.volume = w.open(t.TempDir(), Config{Net: wire.Config{CAFile: caFile, Hosts: []string{"127.0.0.1"}}})
	return server.URL + "/acme/widgets"
}

func TestFetchTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.withSSH()
	server.Answer(&gitserver.SSHAnswer{Stdout: "00", Hang: true})
	slow := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	}))
	defer slow.Close()
	w.volume = w.open(t.TempDir(), Config{FetchTimeout: time.Second})
	defer w.volume.Close()
	overHTTP := w.request("")
	overHTTP.URL = slow.URL + "/acme/other"
	overHTTP.Repo = repoPath(t, "acme/other")
	for _, req := range []SyncRequest{overHTTP, w.sshRequest(server, "")} {
		_, err := w.volume.Sync(testenv.Context(t), req)
		testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)
		if !strings.Contains(err.Error(), "fetch-timeout") || !strings.Contains(err.Error(), " 1s") {
			t.Errorf("error: %v", err)
		}
	}
	mustCloseConnections(t, server)
}
