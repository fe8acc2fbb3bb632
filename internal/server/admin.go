package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

const adminWriteTimeout = 5 * time.Minute // long because clients choose how long a profile runs

// ServeAdmin serves operators on a separate listener until ctx is done:
//
//	GET /debug/pprof/…     profiles, on the loopback interface; on any other address with the API token only
//	GET /metrics, /livez, /readyz
//
// It uses only Live, Ready, Metrics, Token and Log of cfg. [Serve] does not offer profiles, because they expose the
// work of the process and slow it down.
func ServeAdmin(ctx context.Context, listener net.Listener, cfg Config) error {
	cfg.Loopback = Loopback(listener)
	srv := newServer(AdminHandler(cfg), cfg.Log)
	srv.WriteTimeout = adminWriteTimeout
	srv.BaseContext = func(net.Listener) context.Context { return ctx } // ends running profiles on shutdown
	return serve(ctx, listener, srv)
}

// AdminHandler returns the handler of [ServeAdmin].
func AdminHandler(cfg Config) http.Handler {
	if cfg.Loopback {
		cfg.Token = nil // local users need no token; ownSite still refuses pages in a local browser
	}
	mux := http.NewServeMux()
	for pattern, handler := range map[string]http.HandlerFunc{
		"GET /debug/pprof/":        pprof.Index,
		"GET /debug/pprof/cmdline": pprof.Cmdline,
		"GET /debug/pprof/profile": pprof.Profile,
		"GET /debug/pprof/symbol":  pprof.Symbol,
		"POST /debug/pprof/symbol": pprof.Symbol,
		"GET /debug/pprof/trace":   pprof.Trace,
	} {
		protected := guarded(cfg, ownSite(handler))
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if cfg.Loopback {
				r.Header.Del("Authorization") // a local user may send a token nevertheless
			}
			protected.ServeHTTP(w, r)
		})
	}
	mux.Handle("GET /metrics", cfg.Metrics)
	probes(mux, cfg.Live, cfg.Ready)
	return forLocalhost(cfg, mux)
}

// ownSite refuses requests from pages of other sites. Such a page cannot read a profile, but it could start one.
func ownSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Sec-Fetch-Site") {
		case "", "none", "same-origin":
			next.ServeHTTP(w, r)
		default:
			fail(w, http.StatusForbidden, errors.New("requests from other sites are not allowed"))
		}
	})
}
