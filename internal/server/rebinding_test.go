package server_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
)

// TestRebindingPageReadsNothing sends the requests of a web page whose name has been rebound to this machine, and those of
// honest clients, to a server with a dashboard.
func TestRebindingPageReadsNothing(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	if err := client.HSet(t.Context(), string(events.DefaultNamespace)+"repo:acme/secret-project", "repo", "acme/secret-project").Err(); err != nil {
		t.Fatal(err)
	}
	board := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "acme/secret-project") })
	cfg := server.Config{
		Repos: reposOf(client), Leases: leasesOf(client), Dashboard: board, Hooks: &server.Hooks{Sources: hubSources(t)},
		Metrics: telemetry.New().Handler(), Log: slog.New(slog.DiscardHandler),
	}
	for name, tc := range map[string]struct {
		token   string
		address string
		proxy   string
		host    string
		open    int // status of what is open without a token
	}{
		"a rebound name":                       {"", "127.0.0.1:0", "", "rebound.example:8080", 403},
		"a rebound name that begins alike":     {"", "127.0.0.1:0", "", "127.0.0.1.rebound.example", 403},
		"a rebound name that begins otherwise": {"", "127.0.0.1:0", "", "localhost.rebound.example", 403},
		"another address":                      {"", "127.0.0.1:0", "", "192.0.2.1:8080", 403},
		"localhost":                            {"", "127.0.0.1:0", "", "localhost:8080", 200},
		"localhost, without a port":            {"", "127.0.0.1:0", "", "LOCALHOST", 200},
		"127.0.0.1":                            {"", "127.0.0.1:0", "", "127.0.0.1:1", 200},
		"::1":                                  {"", "127.0.0.1:0", "", "[::1]:8080", 200},
		"::1, without a port":                  {"", "127.0.0.1:0", "", "[::1]", 200},
		"a trusted proxy":                      {"", "127.0.0.1:0", "127.0.0.0/8", "lockstep.example.org", 200},
		"another proxy":                        {"", "127.0.0.1:0", "192.0.2.1/32", "lockstep.example.org", 403},
		"with a token":                         {"t0ken", "127.0.0.1:0", "", "lockstep.example.org", 200},
		"not only on loopback":                 {"", "0.0.0.0:0", "", "10.1.2.3:8080", 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := cfg
			cfg.Token = fixed(tc.token)
			if tc.proxy != "" {
				cfg.Proxies = []netip.Prefix{netip.MustParsePrefix(tc.proxy)}
			}
			listener := testenv.Must(net.Listen("tcp4", tc.address))(t)
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- server.Serve(ctx, listener, cfg) }()
			defer func() { cancel(); <-served }()
			_, port, _ := net.SplitHostPort(listener.Addr().String())
			url, host := "http://127.0.0.1:"+port, http.Header{"Host": {tc.host}}
			for _, path := range []string{"/", "/dashboard/", "/api/v1/repos", "/api/v1/repos/acme/secret-project", "/api/v1/locks", "/metrics"} {
				status, text := do(t, "GET", url+path, "", host)
				if status != tc.open || status == 403 && (strings.Contains(text, "secret") || !strings.Contains(text, "api-token-file")) {
					t.Errorf("%s: %d %.200s, want %d", path, status, text, tc.open)
				}
			}
			for _, path := range []string{"/livez", "/readyz"} {
				if status, text := do(t, "GET", url+path, "", host); status != http.StatusOK {
					t.Errorf("%s: %d %s", path, status, text)
				}
			}
			if status, text := do(t, "POST", url+"/hooks/hub", "{}", host); status != http.StatusUnauthorized || !strings.Contains(text, "X-Hub-Signature-256") {
				t.Errorf("a webhook: %d %s", status, text)
			}
		})
	}
}
