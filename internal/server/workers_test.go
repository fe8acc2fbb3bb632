package server_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/testenv"
)

func TestWorkers(t *testing.T) {
	t.Parallel()
	client, ctx, changes := redistest.StartReal(t).Client(), t.Context(), events.DefaultNamespace.Changes()
	handler := documented(t, server.Config{
		Workers: &operate.Workers{Cells: cells.Single(client, cells.Member{Namespace: events.DefaultNamespace})},
		Token:   fixed("t0ken"), Metrics: http.NotFoundHandler(),
	})
	ask := func(method, path, authorization, want string, status int) {
		t.Helper()
		r := httptest.NewRequest(method, path, nil)
		r.Header.Set("Authorization", authorization)
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, r); w.Code != status || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s %s: %d %s, want %d %s", method, path, w.Code, w.Body, status, want)
		}
	}
	ask("GET", "/api/v1/workers", "", `{"workers":[]}`, http.StatusOK)
	testenv.Must(client.XGroupCreateMkStream(ctx, changes, events.WorkersGroup, "0").Result())(t)
	testenv.Must(client.XGroupCreateConsumer(ctx, changes, events.WorkersGroup, "pod-1-x").Result())(t)
	ask("GET", "/api/v1/workers", "", `"name":"pod-1-x","live":true`, http.StatusOK)
	ask("DELETE", "/api/v1/workers/pod-1-x", "", "token", http.StatusUnauthorized)
	ask("DELETE", "/api/v1/workers/pod-1-x", "Bearer t0ken", "is live", http.StatusConflict)
	testenv.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: changes, Values: []string{"a", "b"}}).Result())(t)
	testenv.Must(client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: events.WorkersGroup, Consumer: "pod-1-y", Streams: []string{changes, ">"}}).Result())(t)
	time.Sleep(stream.LiveFor)
	ask("GET", "/api/v1/workers", "", `"name":"pod-1-x","live":false`, http.StatusOK)
	ask("DELETE", "/api/v1/workers/pod-1-y", "Bearer t0ken", "no other worker has taken over", http.StatusConflict)
	ask("DELETE", "/api/v1/workers/pod-1-x", "Bearer t0ken", `"name":"pod-1-x","live":false`, http.StatusOK)
	ask("DELETE", "/api/v1/workers/pod-1-z", "Bearer t0ken", "no worker has this name", http.StatusNotFound)
}
