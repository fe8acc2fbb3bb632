package rig

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/internal/app"
	"lockstep/internal/gitserver"
)

// Host is an HTTP server with a separate loopback address, so that it counts as a separate host.
type Host struct {
	Base     string
	Requests atomic.Int64
	server   http.Server
}

// ServeHost starts a host at 127.0.0.n, until the end of the run.
func (e *Env) ServeHost(n int, handler http.Handler) (*Host, error) {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", n))
	if err != nil {
		return nil, fmt.Errorf("listen on another loopback address: %w", err)
	}
	h := &Host{Base: "http://" + listener.Addr().String() + "/"}
	h.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.Requests.Add(1)
		handler.ServeHTTP(w, r)
	})
	go func() { _ = h.server.Serve(listener) }()
	e.Cleanup(func() { _ = h.server.Close() })
	return h, nil
}

// URLs returns the URLs of n repositories.
func (h *Host) URLs(name string, n int) []string {
	urls := make([]string, n)
	for i := range urls {
		urls[i] = fmt.Sprintf("%sbench/%s-%d.git", h.Base, name, i)
	}
	return urls
}

// Delayed answers after a pause.
func Delayed(pause time.Duration, next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if app.Sleep(r.Context(), pause) {
			next.ServeHTTP(w, r)
		}
	}
}

// Remote serves one tiny repository under every path. It remembers the answers of a real Git server, so that many
// repositories cost this machine little.
type Remote struct {
	git     *gitserver.Server
	answers sync.Map // of answer, by request
}

type answer struct {
	status      int
	contentType string
	body        []byte
}

const remoteRepo = "bench/remote"

// NewRemote creates the repository with some branches, which all name the same commit.
func (e *Env) NewRemote(ctx context.Context, branches int) (*Remote, error) {
	git, err := e.StartGit()
	if err != nil {
		return nil, err
	}
	commit, err := git.Create(ctx, remoteRepo, map[string]string{"readme.txt": "a line\n"})
	if err == nil && branches > 0 {
		var refs strings.Builder
		for i := range branches {
			fmt.Fprintf(&refs, "create refs/heads/%s %s\n", RemoteBranch(i), commit)
		}
		_, err = git.Git(ctx, remoteRepo, refs.String(), "update-ref", "--stdin")
	}
	return &Remote{git: git}, err
}

// RemoteBranch returns the name of a branch of a [Remote].
func RemoteBranch(i int) string { return fmt.Sprintf("branch-%d", i) }

// ServeHTTP implements [http.Handler].
func (m *Remote) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
func (m *Remote) ask(r *http.Request, service string, body []byte) (a answer, err error) {
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

// Hanging is a handler that never answers.
var Hanging http.HandlerFunc = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// Limiting is a handler that answers 429, and a minute as Retry-After.
var Limiting http.HandlerFunc = func(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", "60")
	http.Error(w, "too many requests", http.StatusTooManyRequests)
}
