package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// adminWrite is what an answer of the admin listener may take: profiles are taken for as long as they are asked for.
const adminWrite = 5 * time.Minute

// ServeAdmin answers, on a listener that is for operators alone, until ctx is done:
//
//	GET /debug/pprof/…     profiles, on the loopback interface; on any other address with the API token only
//	GET /metrics, /livez, /readyz
//
// Of cfg it wants Live, Ready, Metrics, Token and Log. Profiles tell what the process works on and cost it time, so
// that [Serve] never has them.
func ServeAdmin(ctx context.Context, listener net.Listener, cfg Config) error {
	cfg.Loopback = Loopback(listener)
	srv := newServer(AdminHandler(cfg), cfg.Log)
	srv.WriteTimeout = adminWrite
	srv.BaseContext = func(net.Listener) context.Context { return ctx } // a profile under way ends with the process
	return serve(ctx, listener, srv)
}

// AdminHandler is the handler of [ServeAdmin].
func AdminHandler(cfg Config) http.Handler {
	if cfg.Loopback {
		cfg.Token = "" // who is on this machine may see what it does; pages in a browser of it may not
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
		mux.Handle(pattern, guarded(cfg, ownSite(handler)))
	}
	mux.Handle("GET /metrics", cfg.Metrics)
	probes(mux, cfg.Live, cfg.Ready)
	return mux
}

// ownSite refuses what a page of another site has a browser ask for: it could not see a profile, but have one taken.
func ownSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Sec-Fetch-Site") {
		case "", "none", "same-origin":
			next.ServeHTTP(w, r)
		default:
			fail(w, http.StatusForbidden, errors.New("this is not for pages of other sites"))
		}
	})
}
