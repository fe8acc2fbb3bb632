package starve

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/bench/rig"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
)

// host is an HTTP server with a separate loopback address, so that it counts as a separate host.
type host struct {
	base     string
	requests atomic.Int64
	server   http.Server
}

// serve starts a host at 127.0.0.n, until the end of the run.
func serve(env *rig.Env, n int, handler http.Handler) (*host, error) {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", n))
	if err != nil {
		return nil, fmt.Errorf("listen on another loopback address: %w", err)
	}
	h := &host{base: "http://" + listener.Addr().String() + "/"}
	h.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.requests.Add(1)
		handler.ServeHTTP(w, r)
	})
	go func() { _ = h.server.Serve(listener) }()
	env.Cleanup(func() { _ = h.server.Close() })
	return h, nil
}

// urls returns the URLs of n repositories.
func (h *host) urls(name string, n int) []string {
	urls := make([]string, n)
	for i := range urls {
		urls[i] = fmt.Sprintf("%sbench/%s-%d.git", h.base, name, i)
	}
	return urls
}

// hanging never answers.
func hanging(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// delayed answers after a pause.
func delayed(pause time.Duration, next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if app.Sleep(r.Context(), pause) {
			next.ServeHTTP(w, r)
		}
	}
}

// limiting answers 429 until the limit is lifted.
type limiting struct {
	retryAfter time.Duration
	lifted     atomic.Bool
	next       http.Handler
}

func (l *limiting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.lifted.Load() {
		l.next.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(l.retryAfter.Seconds())))
	http.Error(w, "too many requests", http.StatusTooManyRequests)
}

// remote serves one tiny repository under every path. It remembers the answers of a real Git server, so that many
// repositories cost this machine little.
type remote struct {
	git     *gitserver.Server
	answers sync.Map // of answer, by request
}

type answer struct {
	status      int
	contentType string
	body        []byte
}

const remoteRepo = "bench/remote"

// newRemote creates the repository with some branches, which all name the same commit.
func newRemote(ctx context.Context, env *rig.Env, branches int) (*remote, error) {
	git, err := env.StartGit()
	if err != nil {
		return nil, err
	}
	commit, err := git.Create(ctx, remoteRepo, map[string]string{"readme.txt": "a line\n"})
	if err == nil && branches > 0 {
		var refs strings.Builder
		for i := range branches {
			fmt.Fprintf(&refs, "create refs/heads/%s %s\n", branch(i), commit)
		}
		_, err = git.Git(ctx, remoteRepo, refs.String(), "update-ref", "--stdin")
	}
	return &remote{git: git}, err
}

func branch(i int) string { return fmt.Sprintf("branch-%d", i) }

func (m *remote) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	_, service, _ := strings.Cut(r.URL.Path, ".git/")
	key := fmt.Sprintf("%s?%s %q %s", service, r.URL.RawQuery, r.Header["Git-Protocol"], body)
	found, known := m.answers.Load(key)
	a, _ := found.(answer)
	if !known {
		if a, err = m.ask(r, service, body); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		m.answers.Store(key, a)
	}
	w.Header().Set("Content-Type", a.contentType)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}

// ask passes a request on to the Git server.
func (m *remote) ask(r *http.Request, service string, body []byte) (a answer, err error) {
	url := m.git.URL(remoteRepo) + "/" + service + "?" + r.URL.RawQuery
	req, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method, url, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	for _, name := range []string{"Accept", "Content-Type", "Content-Encoding", "Git-Protocol"} {
		req.Header[name] = r.Header[name]
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	a.status, a.contentType = res.StatusCode, res.Header.Get("Content-Type")
	a.body, err = io.ReadAll(res.Body)
	return a, err
}
