package server_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/hosts"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
)

func TestListHosts(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	budgets, err := hosts.New(hosts.Config{Redis: client, Prefix: string(events.DefaultNamespace), Process: "w1", Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(host, repo, credential string) *hosts.Permit {
		t.Helper()
		path, err := events.ParseRepoPath(repo)
		if err != nil {
			t.Fatal(err)
		}
		permit, _ := budgets.Enter(t.Context(), hosts.Request{Host: host, Credential: credential, Repo: path, Kind: hosts.Push})
		return permit
	}
	cfg := server.Config{
		Hosts:   telemetry.NewHosts(hosts.Reader{Redis: client, Prefix: string(events.DefaultNamespace)}),
		Metrics: http.NotFoundHandler(), Token: "t0ken",
	}
	ask("idle.example", "a/1", "").Done(t.Context(), hosts.Answer{Status: 200})
	ask("busy.example", "a/1", "").Done(t.Context(), hosts.Answer{Status: 200}) // stores the limit
	ask("busy.example", "a/1", "")
	ask("git.example:8443", "a/1", "app").Done(t.Context(), hosts.Answer{Status: 429, Header: http.Header{"Retry-After": {"60"}}})
	if ask("git.example:8443", "a/2", "app") != nil {
		t.Fatal("a limited credential got a permit")
	}

	request := httptest.NewRequest("GET", "/api/v1/hosts", nil)
	request.Header.Set("Authorization", "Bearer t0ken")
	w := httptest.NewRecorder()
	documented(t, cfg).ServeHTTP(w, request)
	var list struct{ Hosts []server.Host }
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || w.Code != http.StatusOK || len(list.Hosts) != 2 {
		t.Fatalf("%d %s (%v), want two hosts", w.Code, w.Body, err)
	}
	if h := list.Hosts[0]; h.Host != "busy.example" || h.InUse != 1 || h.Limit != 2 || h.Reason != "" || h.Until != nil {
		t.Errorf("%+v", h)
	}
	h := list.Hosts[1]
	if h.Host != "git.example:8443" || h.Reason != "rate limit" || h.Waiting != 1 || len(h.Limited) != 1 || h.Limited[0].Credential != "app" {
		t.Fatalf("%+v", h)
	}
	if left := time.Until(*h.Until); left < 50*time.Second || left > 61*time.Second || !h.Limited[0].Until.Equal(*h.Until) {
		t.Errorf("until %v, %v", h.Until, h.Limited[0].Until)
	}
}
