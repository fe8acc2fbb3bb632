package server_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/pprof"
	"testing"

	"lockstep/internal/server"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
)

func TestProfilesNeedLocalAccessOrToken(t *testing.T) {
	t.Parallel()
	const path = "/debug/pprof/goroutine?debug=1"
	bearer := http.Header{"Authorization": {"Bearer t0ken"}}
	for name, tc := range map[string]struct {
		loopback bool
		token    string
		header   http.Header
		status   int
	}{
		"local":                                 {true, "", nil, 200},
		"local, although a token is configured": {true, "t0ken", nil, 200},
		"local, from a page with a rebound DNS name": {true, "", http.Header{"Host": {"rebound.example"}}, 403},
		"local, from another site's page":            {true, "", http.Header{"Sec-Fetch-Site": {"cross-site"}}, 403},
		"local, from a page of the same site":        {true, "", http.Header{"Sec-Fetch-Site": {"same-origin"}}, 200},
		"local, typed into a browser":                {true, "", http.Header{"Sec-Fetch-Site": {"none"}}, 200},
		"remote, no token configured":                {false, "", nil, 403},
		"remote, no token configured, for localhost": {false, "", http.Header{"Host": {"localhost"}}, 403},
		"remote without the token":                   {false, "t0ken", nil, 401},
		"remote with the token":                      {false, "t0ken", bearer, 200},
		"remote with a token, none configured":       {false, "", bearer, 403},
		"local with a token, none configured":        {true, "", bearer, 200},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(server.AdminHandler(server.Config{Token: fixed(tc.token), Loopback: tc.loopback, Metrics: telemetry.New().Handler()}))
			defer srv.Close()
			if status, text := do(t, "GET", srv.URL+path, "", tc.header); status != tc.status {
				t.Errorf("%d %.200s, want %d", status, text, tc.status)
			}
			for _, open := range []string{"/metrics", "/livez", "/readyz"} {
				if status, _ := do(t, "GET", srv.URL+open, "", nil); status != http.StatusOK {
					t.Errorf("%s: %d", open, status)
				}
			}
			want := http.StatusOK
			if tc.loopback {
				want = http.StatusForbidden
			}
			if status, _ := do(t, "GET", srv.URL+"/metrics", "", http.Header{"Host": {"rebound.example"}}); status != want {
				t.Errorf("/metrics from a page with a rebound DNS name: %d, want %d", status, want)
			}
		})
	}
}

func TestShutdownEndsRunningProfile(t *testing.T) {
	listener := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- server.ServeAdmin(ctx, listener, server.Config{Metrics: telemetry.New().Handler(), Log: slog.New(slog.DiscardHandler)})
	}()
	profiled := make(chan struct{})
	go func() {
		defer close(profiled)
		for { // refused while the loop below is profiling
			resp, err := http.Get("http://" + listener.Addr().String() + "/debug/pprof/profile?seconds=60")
			if err != nil {
				return
			}
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
	}()
	for pprof.StartCPUProfile(io.Discard) == nil { // until the request has it
		pprof.StopCPUProfile()
		runtime.Gosched()
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("ServeAdmin: %v", err)
	}
	<-profiled
}
