package gitserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cgi"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const maxRequest = 16 << 20 // bytes; the wants and haves of a fetch are much smaller

// Server serves the bare repositories in a directory.
type Server struct {
	dir      string
	base     string // "http://127.0.0.1:port"
	secure   bool   // uses HTTPS
	ca       []byte // see CA
	before   func(ctx context.Context, repo, service string)
	commits  atomic.Int64 // number of commits, which determines their dates
	http     http.Server
	backend  cgi.Handler
	serving  sync.WaitGroup // counts Serve and all handlers
	stop     context.CancelFunc
	mu       sync.Mutex
	closed   bool
	repos    map[string]*repoState
	maxRepos int                      // maximum number of repositories in upload-pack at the same time
	limits   map[string]time.Duration // see LimitToken
	only0    atomic.Bool              // see IgnoreVersion
}

// repoState is the state of a repository, guarded by Server.mu.
type repoState struct {
	Stats
	user       string   // of RequireAuth; empty for any
	tokens     []string // one of which is required, unless empty
	usedTokens []string // see TokensSeen
	lfs        *LFS     // see LFS
	status     int      // status to respond with instead of serving, unless 0
	location   string   // URL to redirect to with that status; see Redirect
}

// Option configures a [Server].
type Option func(*Server)

// WithBefore calls hook before each request is served, with the repository ("acme/widgets") and the service:
// "info/refs" for a list of refs, "git-upload-pack" for objects. It is not called for the capabilities of
// protocol 2. The request waits until hook returns. ctx is done when the client disconnects or the server
// closes.
func WithBefore(hook func(ctx context.Context, repo, service string)) Option {
	return func(s *Server) { s.before = hook }
}

// backend returns the path of git-http-backend. Starting it through git would be another process for each request.
var backend = sync.OnceValues(func() (string, error) {
	dir, err := Git(context.Background(), "", "", "--exec-path")
	return filepath.Join(dir, "git-http-backend"), err
})

// Start serves the bare repositories in dir on a free port of 127.0.0.1. It creates dir if necessary. The
// caller must close the server.
func Start(dir string, opts ...Option) (*Server, error) {
	backend, err := backend()
	if err != nil {
		return nil, fmt.Errorf("start git server: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("start git server: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start git server: %w", err)
	}
	s := &Server{
		dir: dir, base: "http://" + listener.Addr().String(), repos: map[string]*repoState{},
		limits: map[string]time.Duration{},
	}
	for _, opt := range opts {
		opt(s)
	}
	if s.secure {
		s.base = "https://" + listener.Addr().String()
		if listener, err = s.secured(listener); err != nil {
			return nil, err
		}
	}
	s.backend = cgi.Handler{
		Path:   backend,
		Env:    append(isolatedEnv(), "GIT_PROJECT_ROOT="+dir, "GIT_HTTP_EXPORT_ALL=1"),
		Stderr: io.Discard,
		Logger: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // clients may disconnect
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.http.BaseContext = func(net.Listener) context.Context { return ctx }
	s.http.Handler = http.HandlerFunc(s.serve)
	s.serving.Go(func() { _ = s.http.Serve(listener) })
	return s, nil
}

// Close stops the server, cancels running requests and waits for them to end.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	_ = s.http.Close()
	s.serving.Wait()
}

// URL returns the clone URL of repo.
func (s *Server) URL(repo string) string { return s.base + "/" + repo + ".git" }

// RequireAuth answers requests for repo with 401 unless they contain this user name and password as Basic
// credentials, or the password as a Bearer token.
func (s *Server) RequireAuth(repo, username, password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.state(repo)
	state.user, state.tokens = username, []string{password}
}

// Answer responds to requests for repo with an HTTP status instead of serving them; 0 restores normal service.
func (s *Server) Answer(repo string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state(repo).status = status
}

// Redirect responds to requests for repo with a redirect of that status to the repository at url, as forges
// do after a rename.
func (s *Server) Redirect(repo, url string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state(repo).status, s.state(repo).location = status, url
}

// IgnoreVersion makes the server ignore the protocol version that clients ask for, as servers before Git 2.18 do.
func (s *Server) IgnoreVersion(ignore bool) { s.only0.Store(ignore) }

func (s *Server) state(repo string) *repoState {
	state, ok := s.repos[repo]
	if !ok {
		state = &repoState{}
		s.repos[repo] = state
	}
	return state
}

// enter reports whether a request may be served. If so, the caller must call serving.Done afterwards.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.serving.Add(1)
	}
	return !s.closed
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		return
	}
	defer s.serving.Done()
	repo, service, err := splitRequest(r.URL.Path)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	// Read the whole body first: only then does net/http detect that the client disconnects.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		http.Error(w, "request too long", http.StatusRequestEntityTooLarge)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if s.only0.Load() {
		r.Header.Del("Git-Protocol")
	}
	service = serviceOf(service, r.Header, body)
	status, retryAfter := s.begin(repo, service, r)
	defer s.end(repo, service)
	if s.before != nil && service != capabilities {
		s.before(r.Context(), repo, service)
	}
	switch {
	case status == http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Basic realm="gitserver"`)
		http.Error(w, "credentials, please", status)
	case retryAfter > 0:
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
		http.Error(w, "too many requests", status)
	case status >= 300 && status < 400:
		http.Redirect(w, r, s.redirect(repo, r.URL), status)
	case status != 0:
		http.Error(w, http.StatusText(status), status)
	case strings.HasPrefix(service, lfsPrefix):
		s.LFS(repo).serve(w, r, strings.TrimPrefix(service, lfsPrefix))
	default:
		s.backend.ServeHTTP(w, r)
	}
}

func (s *Server) redirect(repo string, of *url.URL) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state(repo).location + strings.TrimPrefix(of.RequestURI(), "/"+repo+".git")
}

func splitRequest(path string) (repo, service string, err error) {
	repo, service, ok := strings.Cut(strings.TrimPrefix(path, "/"), ".git/")
	if !ok || !filepath.IsLocal(repo) {
		return "", "", errors.New("not a repository")
	}
	return repo, service, nil
}
