package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
)

// remoteHost is an HTTP server with a loopback address of its own, so that it counts as a host of its own whatever a host is told by. It
// serves Git repositories, and misbehaves on request.
type remoteHost struct {
	base string // "http://127.0.0.2:4567/"
	name string // "127.0.0.2:4567"
	next http.Handler

	mu       sync.Mutex
	behave   func(remoteRequest, http.ResponseWriter, *http.Request) (handled bool)
	requests []remoteRequest
}

// remoteRequest is a request to a [remoteHost].
type remoteRequest struct {
	at    time.Time
	repo  string // "acme/widgets"; the whole path if it is not that of a repository
	token string // password or Bearer token, or ""
	pack  bool   // for objects
}

// startRemote starts a host at 127.0.0.n that answers with next.
func startRemote(t *testing.T, n int, next http.Handler) *remoteHost {
	t.Helper()
	listener := proctest.Must(net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", n)))(t)
	h := &remoteHost{name: listener.Addr().String(), next: next}
	h.base = "http://" + h.name + "/"
	server := httptest.NewUnstartedServer(h)
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections() // ends requests that hang
		server.Close()
	})
	return h
}

// url returns the clone URL of a repository.
func (h *remoteHost) url(repo string) string { return h.base + repo + ".git" }

// does makes the host answer as fn does, if it returns true; nil restores normal service.
func (h *remoteHost) does(fn func(remoteRequest, http.ResponseWriter, *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.behave = fn
}

// seen returns the requests so far, in the order in which they arrived.
func (h *remoteHost) seen() []remoteRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.requests)
}

// repos returns the repositories that were asked for, in the order of their first requests.
func (h *remoteHost) repos() (repos []string) {
	for _, r := range h.seen() {
		if !slices.Contains(repos, r.repo) {
			repos = append(repos, r.repo)
		}
	}
	return repos
}

func (h *remoteHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body) // only then does net/http notice that the client disconnects
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	repo, service, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), ".git/")
	_, token, basic := r.BasicAuth()
	if !basic {
		token = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	request := remoteRequest{time.Now(), repo, token, service == "git-upload-pack" && !bytes.Contains(body, []byte("command=ls-refs"))}
	h.mu.Lock()
	h.requests = append(h.requests, request)
	behave := h.behave
	h.mu.Unlock()
	if behave == nil || !behave(request, w, r) {
		h.next.ServeHTTP(w, r)
	}
}

// hangs never answers.
func hangs(_ remoteRequest, _ http.ResponseWriter, r *http.Request) bool {
	<-r.Context().Done()
	return true
}

// drops closes the connection without an answer.
func drops(remoteRequest, http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }

// answers returns a status, with a Retry-After unless it is 0.
func answers(status int, retryAfter time.Duration) func(remoteRequest, http.ResponseWriter, *http.Request) bool {
	return func(_ remoteRequest, w http.ResponseWriter, _ *http.Request) bool {
		if retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
		}
		http.Error(w, http.StatusText(status), status)
		return true
	}
}

// ofRepo applies a behaviour to one repository only.
func ofRepo(repo string, behave func(remoteRequest, http.ResponseWriter, *http.Request) bool) func(remoteRequest, http.ResponseWriter, *http.Request) bool {
	return func(request remoteRequest, w http.ResponseWriter, r *http.Request) bool {
		return request.repo == repo && behave(request, w, r)
	}
}

// inFrontOf passes requests on to a Git server, with its repositories.
func inFrontOf(t *testing.T, git *gitserver.Server) http.Handler {
	t.Helper()
	target := proctest.Must(url.Parse(git.URL("x")))(t)
	target.Path = ""
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {} // the client or the test has ended
	return proxy
}

// sameEverywhere serves one tiny repository under every path, and remembers the answers of Git: many repositories cost little.
type sameEverywhere struct {
	git     http.Handler
	mu      sync.Mutex
	answers map[string]*httptest.ResponseRecorder
}

const sharedRepo = "acme/shared"

func startSameEverywhere(t *testing.T) *sameEverywhere {
	t.Helper()
	git := proctest.StartGit(t)
	proctest.Must(git.Create(t.Context(), sharedRepo, map[string]string{"a": "1"}))(t)
	return &sameEverywhere{git: inFrontOf(t, git), answers: map[string]*httptest.ResponseRecorder{}}
}

func (s *sameEverywhere) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, service, _ := strings.Cut(r.URL.Path, ".git/")
	key := service + r.Header.Get("Git-Protocol") + string(body)
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, known := s.answers[key]
	if !known {
		asked := r.Clone(r.Context())
		asked.URL.Path, asked.Body = "/"+sharedRepo+".git/"+service, io.NopCloser(bytes.NewReader(body))
		asked.Header.Del("Authorization")
		answer = httptest.NewRecorder()
		s.git.ServeHTTP(answer, asked)
		s.answers[key] = answer
	}
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// silentListener accepts connections at 127.0.0.n and never answers: no HTTP response, no TLS handshake, no SSH banner.
type silentListener struct{ addr string }

// startSilent starts a listener that counts the connections that the other side has ended.
func startSilent(t *testing.T, n int, ended *atomic.Int32) *silentListener {
	t.Helper()
	listener := proctest.Must(net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", n)))(t)
	var accepting, reading sync.WaitGroup
	var conns []net.Conn
	accepting.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
			reading.Go(func() {
				_, _ = io.Copy(io.Discard, conn)
				ended.Add(1)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		accepting.Wait()
		for _, conn := range conns {
			_ = conn.Close()
		}
		reading.Wait()
	})
	return &silentListener{listener.Addr().String()}
}
