package server_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
)

// startWatches serves only the registry of watches.
func startWatches(t *testing.T) (url string, redisServer *redistest.Server) {
	t.Helper()
	redisServer = redistest.Start(t)
	srv := httptest.NewServer(documented(t, server.Config{
		Watches: watchesOf(redisServer.Client()),
		Token:   fixed("t0ken"), Metrics: telemetry.New().Handler(), Log: slog.New(slog.DiscardHandler),
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/api/v1/watches", redisServer
}

func TestWatchLifecycle(t *testing.T) {
	t.Parallel()
	url, redisServer := startWatches(t)
	const widgets = `{"app":"docs","url":"https://example.com/acme/widgets.git"}`
	const tags = `{"app":"ci","url":"https://example.com/acme/widgets.git","ref":"refs/tags/v*","poll":"10m","depth":"50","silenced":"since ever"}`
	for _, tc := range []struct {
		name, method, query, body string
		status                    int
		says                      string
	}{
		{"none yet", "GET", "", "", http.StatusOK, `{"watches":[]}`},
		{"a new one", "PUT", "", widgets, http.StatusCreated, `{"app":"docs","repo":"acme/widgets","url":"https://example.com/acme/widgets.git"}`},
		{"the same", "PUT", "", widgets, http.StatusOK, `"app":"docs"`},
		{"spelled in another way", "PUT", "", `{"app":"docs","repo":"Acme/Widgets","url":"https://example.com/acme/widgets"}`, http.StatusOK, `"repo":"Acme/Widgets"`},
		{"another app's", "PUT", "", tags, http.StatusCreated, `"ref":"refs/tags/v*","depth":"50","poll":"10m0s"}`},
		{"another remote", "PUT", "", `{"app":"x","url":"https://example.org/acme/widgets.git"}`, http.StatusConflict, "watched at example.com/acme/widgets by app"},
		{"a page", "GET", "?limit=1", "", http.StatusOK, `"next":"acme/widgets ci refs/tags/v*"`},
		{"the next", "GET", "?limit=1&after=acme/widgets+ci+refs/tags/v*", "", http.StatusOK, `"app":"docs"`},
		{"an app's", "GET", "?app=ci", "", http.StatusOK, `{"watches":[{"app":"ci"`},
		{"a prefix", "GET", "?prefix=acme/gadgets", "", http.StatusOK, `{"watches":[]}`},
		{"no removal", "DELETE", "?repo=acme/widgets&app=ci", "", http.StatusNotFound, "no such watch"},
		{"a removal", "DELETE", "?repo=acme/widgets&app=ci&ref=refs/tags/v*", "", http.StatusOK, `{"removed":1}`},
		{"the last", "DELETE", "?repo=ACME/widgets&app=docs", "", http.StatusOK, `{"removed":1}`},
	} {
		status, text := do(t, tc.method, url+tc.query, tc.body, auth)
		if status != tc.status || !strings.Contains(text, tc.says) || strings.Contains(text, "silenced") {
			t.Errorf("%s: %d %s, want %d with %s", tc.name, status, text, tc.status, tc.says)
		}
	}
	entries, err := redisServer.Client().XRange(context.Background(), events.DefaultNamespace.Changes(), "-", "+").Result()
	if err != nil || len(entries) != 5 { // due four times, then a removal
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	payload, _ := entries[4].Values["payload"].(string)
	if last, err := events.ParseChange([]byte(payload)); err != nil || last.Type != events.ChangeRemoved || !last.Force {
		t.Errorf("%s, %v", payload, err)
	}
}

func TestInvalidWatchesAreRefused(t *testing.T) {
	t.Parallel()
	url, redisServer := startWatches(t)
	for name, tc := range map[string]struct {
		method, query, body string
		status              int
	}{
		"no document":                {"PUT", "", "", http.StatusBadRequest},
		"an unknown name":            {"PUT", "", `{"app":"docs","url":"https://example.com/a/b","urll":"x"}`, http.StatusBadRequest},
		"two documents":              {"PUT", "", `{"app":"docs","url":"https://example.com/a/b"} {}`, http.StatusBadRequest},
		"no app":                     {"PUT", "", `{"url":"https://example.com/a/b"}`, http.StatusBadRequest},
		"a secret in the URL":        {"PUT", "", `{"app":"docs","url":"https://u:hunter2@example.com/a/b"}`, http.StatusBadRequest},
		"a path that escapes":        {"PUT", "", `{"app":"docs","repo":"a/..","url":"https://example.com/a/b"}`, http.StatusBadRequest},
		"too long":                   {"PUT", "", `{"app":"` + strings.Repeat("x", 2<<20) + `"}`, http.StatusRequestEntityTooLarge},
		"no limit":                   {"GET", "?limit=0", "", http.StatusBadRequest},
		"no place to go on":          {"GET", "?after=x", "", http.StatusBadRequest},
		"a removal of no repository": {"DELETE", "?app=docs", "", http.StatusBadRequest},
		"a removal of no app's":      {"DELETE", "?repo=a/b", "", http.StatusBadRequest},
		"a removal of no ref":        {"DELETE", "?repo=a/b&app=docs&ref=a..b", "", http.StatusBadRequest},
		"another method":             {"POST", "", "{}", http.StatusMethodNotAllowed},
	} {
		status, text := do(t, tc.method, url+tc.query, tc.body, auth)
		if status != tc.status || strings.Contains(text, "hunter2") {
			t.Errorf("%s: %d %s, want %d", name, status, text, tc.status)
		}
	}
	if n := redisServer.Client().DBSize(context.Background()).Val(); n != 0 {
		t.Errorf("%d keys in Redis, want none", n)
	}
}
