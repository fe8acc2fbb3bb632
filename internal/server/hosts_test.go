package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
)

func TestListHosts(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	limiter, err := hosts.New(hosts.Config{Redis: client, Prefix: string(events.DefaultNamespace)})
	if err != nil {
		t.Fatal(err)
	}
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
	cfg := server.Config{
		Hosts:   telemetry.NewHosts(hosts.Reader{Redis: client, Prefix: string(events.DefaultNamespace)}),
		Metrics: http.NotFoundHandler(), Token: fixed("t0ken"),
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

	request := httptest.NewRequest("GET", "/api/v1/hosts", nil)
	request.Header.Set("Authorization", "Bearer t0ken")
	w := httptest.NewRecorder()
	documented(t, cfg).ServeHTTP(w, request)
	var list struct{ Hosts []hosts.Host }
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || w.Code != http.StatusOK || len(list.Hosts) != 2 {
		t.Fatalf("%d %s (%v), want two hosts", w.Code, w.Body, err)
	}
	if h := list.Hosts[1]; h.Host != "idle.example" || h.Waiting != 0 || h.Reason != "" || !h.Until.IsZero() {
		t.Errorf("%+v", h)
	}
	h := list.Hosts[0]
	if h.Host != "git.example:8443" || h.Reason != "rate limit" || h.Waiting != 2 || len(h.Limited) != 1 || h.Limited[0].Credential != "app" {
		t.Fatalf("%+v", h)
	}
	if left := time.Until(h.Until); left < 50*time.Second || left > 61*time.Second || !h.Limited[0].Until.Equal(h.Until) {
		t.Errorf("until %v, %v", h.Until, h.Limited[0].Until)
	}
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
