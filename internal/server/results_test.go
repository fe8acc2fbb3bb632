package server_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/testenv"
)

func TestResultIsShown(t *testing.T) {
	t.Parallel()
	client, ctx, namespace := redistest.Start(t).Client(), t.Context(), events.DefaultNamespace
	set := cells.Single(client, cells.Member{Namespace: namespace})
	handler := documented(t, server.Config{
		Results: &operate.Results{Cells: set}, Token: fixed("t0ken"), Metrics: http.NotFoundHandler(),
	})
	ask := func(method, path, want string, status int) {
		t.Helper()
		r := httptest.NewRequest(method, path, nil)
		r.Header.Set("Authorization", "Bearer t0ken")
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, r); w.Code != status || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s %s: %d %s, want %d %s", method, path, w.Code, w.Body, status, want)
		}
	}
	change := testenv.Must(events.NewChange(events.Change{URL: "https://git.example/acme/widget.git", App: "docs"}))(t)
	payload := testenv.Must(json.Marshal(events.Result{
		ID: "r1", Type: events.ResultFailed, Source: "/lockstep/worker/w1", Time: time.Now(), Repo: change.Repo, App: "docs",
		Deliveries: []string{change.ID}, Attempts: 1, Class: events.ClassNotFound, Error: "no such repository",
	}))(t)
	entry := testenv.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: namespace.Results(), Values: []string{"payload", string(payload)}}).Result())(t)
	ask("GET", "/api/v1/results/"+entry, `"notifications":[]`, http.StatusOK)
	ask("GET", "/api/v1/results/1-1", "no such result", http.StatusNotFound)
}
