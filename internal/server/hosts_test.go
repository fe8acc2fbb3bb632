package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
)

func TestListHosts(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	limiter := testenv.Must(hosts.New(hosts.Config{Redis: client, Prefix: string(events.DefaultNamespace)}))(t)
	ask := func(host, repo, credential string, answer wire.Answer) error {
		t.Helper()
		job := limiter.Job(repo, false)
		defer job.Leave(t.Context())
		done, err := job.With(credential).Acquire(t.Context(), host)
		if err == nil {
			done(answer)
		}
		return err
	}
	limited := wire.Answer{Status: 429, Header: http.Header{"Retry-After": {"60"}}}
	for _, ask := range []error{
		ask("idle.example", "a/1", "", wire.Answer{Status: 200}), ask("git.example:8443", "a/1", "app", limited),
		ask("git.example:8443", "a/1", "another", wire.Answer{Status: 200}),
	} {
		if ask != nil {
			t.Fatal(ask)
		}
	}
	if ask("git.example:8443", "a/2", "app", limited) == nil {
		t.Fatal("a request with a limited credential was sent")
	}

	get := asker(t, server.Config{Hosts: telemetry.NewHosts(hosts.Reader{Redis: client, Prefix: string(events.DefaultNamespace)})})
	get("GET", "/api/v1/hosts", `{"hosts":[{"host":"git.example:8443","waiting":2,"reason":"rate limit","until":"20`, http.StatusOK)
	get("GET", "/api/v1/hosts", `"limited_credentials":[{"credential":"app","until":"20`, http.StatusOK)
	get("GET", "/api/v1/hosts", `{"host":"idle.example","waiting":0,`, http.StatusOK)
}

func TestShowStatus(t *testing.T) {
	t.Parallel()
	failed := error(nil)
	cfg := server.Config{
		Metrics: http.NotFoundHandler(), Token: fixed("t0ken"),
		Verdict: func(context.Context) (operate.Verdict, error) { return operate.Facts{Dead: 2}.Verdict(), failed },
	}
	get := func(token string) *httptest.ResponseRecorder {
		t.Helper()
		request := httptest.NewRequest("GET", "/api/v1/status", nil)
		request.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		documented(t, cfg).ServeHTTP(w, request)
		return w
	}
	var v operate.Verdict
	w := get("t0ken")
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Code != http.StatusOK || v.Health != operate.HealthAttention || len(v.Needs) != 2 {
		t.Errorf("%d %s (%v)", w.Code, w.Body, err)
	}
	if w := get("wrong"); w.Code != http.StatusUnauthorized {
		t.Errorf("%d without a token", w.Code)
	}
	if failed = errors.New("redis: connection refused"); get("t0ken").Code != http.StatusServiceUnavailable {
		t.Errorf("%d without Redis", w.Code)
	}
}
