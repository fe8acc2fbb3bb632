package server_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
)

func startServer(t *testing.T, token string) (url string, redisServer *redistest.Server) {
	t.Helper()
	redisServer = redistest.Start(t)
	client := redisServer.Client()
	publisher := testenv.Must(stream.NewPublisher(stream.PublisherConfig{Client: client}, nil))(t)
	srv := httptest.NewServer(documented(t, server.Config{
		Publisher: publisher, TopicOf: func(events.RepoPath) (string, error) { return events.DefaultNamespace.Changes(), nil }, Token: fixed(token), Metrics: telemetry.New().Handler(),
		Leases: leasesOf(client), Loopback: true,
		Log: slog.New(slog.DiscardHandler),
		Ready: server.NewHealth(server.Check{Name: "redis", Now: func() error {
			if client.Ping(context.Background()).Err() != nil {
				return errors.New("it does not answer")
			}
			return nil
		}}),
	}))
	t.Cleanup(srv.Close)
	return srv.URL, redisServer
}

func leasesOf(client redis.UniversalClient) *operate.Leases {
	return &operate.Leases{Cells: cells.Single(client, cells.Member{Namespace: events.DefaultNamespace})}
}

func reposOf(client redis.UniversalClient) *operate.Repos {
	return &operate.Repos{Cells: leasesOf(client).Cells}
}

func watchesOf(client redis.UniversalClient) *operate.Watches {
	return &operate.Watches{Cells: leasesOf(client).Cells}
}

func do(t *testing.T, method, url, body string, header http.Header) (status int, text string) {
	t.Helper()
	req := testenv.Must(http.NewRequest(method, url, strings.NewReader(body)))(t)
	for name, values := range header {
		req.Header[name] = values
	}
	req.Host = header.Get("Host") // "" uses the URL's host
	resp := testenv.Must(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	got := testenv.Must(io.ReadAll(resp.Body))(t)
	return resp.StatusCode, string(got)
}

// asker returns a function that sends requests with the token to a server, and checks its responses.
func asker(t *testing.T, cfg server.Config) func(method, path, want string, status int) {
	cfg.Token, cfg.Metrics = fixed("t0ken"), http.NotFoundHandler()
	handler := documented(t, cfg)
	return func(method, path, want string, status int) {
		t.Helper()
		r := httptest.NewRequest(method, path, nil)
		r.Header = auth.Clone()
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, r); w.Code != status || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s %s: %d %s, want %d %s", method, path, w.Code, w.Body, status, want)
		}
	}
}

const plain = `{"repo":"acme/widgets","url":"https://example.com/acme/widgets.git"}`

func TestInvalidChangesAreRefused(t *testing.T) {
	t.Parallel()
	url, redisServer := startServer(t, "t0ken")
	auth := http.Header{"Authorization": {"Bearer t0ken"}}
	for name, tc := range map[string]struct {
		method, path, body string
		header             http.Header
		status             int
	}{
		"no token":                 {"POST", "/api/v1/changes", plain, nil, http.StatusUnauthorized},
		"a wrong token":            {"POST", "/api/v1/changes", plain, http.Header{"Authorization": {"Bearer t0kem"}}, http.StatusUnauthorized},
		"the token without scheme": {"POST", "/api/v1/changes", plain, http.Header{"Authorization": {"t0ken"}}, http.StatusUnauthorized},
		"no body":                  {"POST", "/api/v1/changes", "", auth, http.StatusBadRequest},
		"a path with dots":         {"POST", "/api/v1/changes", `{"repo":"acme/..","url":"https://example.com/a/b"}`, auth, http.StatusBadRequest},
		"a body that is too long":  {"POST", "/api/v1/changes", strings.Repeat(" ", 2<<20), auth, http.StatusRequestEntityTooLarge},
		"another method":           {"GET", "/api/v1/changes", "", auth, http.StatusMethodNotAllowed},
		"a profile":                {"GET", "/debug/pprof/heap", "", auth, http.StatusNotFound}, // on the admin listener only
		"another site's page":      {"POST", "/api/v1/changes", plain, http.Header{"Authorization": {"Bearer t0ken"}, "Origin": {"https://evil.example"}, "Sec-Fetch-Site": {"cross-site"}}, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			if status, text := do(t, tc.method, url+tc.path, tc.body, tc.header); status != tc.status {
				t.Errorf("%d %s, want %d", status, text, tc.status)
			}
		})
	}
	if n := redisServer.Client().XLen(context.Background(), events.DefaultNamespace.Changes()).Val(); n != 0 {
		t.Errorf("%d entries in the stream, want none", n)
	}
}

func TestWithoutTokenOnlyLocalRequests(t *testing.T) {
	t.Parallel()
	url, _ := startServer(t, "")
	for host, want := range map[string]int{
		"127.0.0.1:8080": http.StatusAccepted, "localhost": http.StatusAccepted, "[::1]:8080": http.StatusAccepted,
		"rebound.example:8080": http.StatusForbidden, "127.0.0.1.rebound.example": http.StatusForbidden,
	} {
		if status, text := do(t, "POST", url+"/api/v1/changes", plain, http.Header{"Host": {host}}); status != want {
			t.Errorf("host %s: %d %s, want %d", host, status, text, want)
		}
	}
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"} {
		if status, text := do(t, "POST", url+"/api/v1/changes", plain, http.Header{"Host": {"localhost"}, name: {"192.0.2.1"}}); status != http.StatusForbidden {
			t.Errorf("through a proxy that sends %s: %d %s, want 403", name, status, text)
		}
	}
}

// fixed returns a token that does not change.
func fixed(token string) func() string { return func() string { return token } }
