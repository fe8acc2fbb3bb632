package rig

import (
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"lockstep/internal/redisx"
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

// URL returns the URL of a repository.
func (h *Host) URL(repo string) string { return h.Base + repo + ".git" }

// URLs returns the URLs of n repositories.
func (h *Host) URLs(name string, n int) []string {
	urls := make([]string, n)
	for i := range urls {
		urls[i] = h.URL(fmt.Sprintf("bench/%s-%d", name, i))
	}
	return urls
}

// Delayed answers after a pause.
func Delayed(pause time.Duration, next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if redisx.Pause(r.Context(), pause) {
			next.ServeHTTP(w, r)
		}
	}
}

// Hanging is a handler that never answers.
var Hanging http.HandlerFunc = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// Limiting is a handler that answers 429, and a minute as Retry-After.
var Limiting http.HandlerFunc = func(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", "60")
	http.Error(w, "too many requests", http.StatusTooManyRequests)
}
