package server_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/testenv"
)

func TestWorkers(t *testing.T) {
	t.Parallel()
	client, ctx, changes := redistest.StartReal(t).Client(), t.Context(), events.DefaultNamespace.Changes()
	ask := asker(t, server.Config{Workers: &operate.Workers{Cells: leasesOf(client).Cells}})
	ask("GET", "/api/v1/workers", `{"workers":[]}`, http.StatusOK)
	testenv.Must(client.XGroupCreateMkStream(ctx, changes, events.WorkersGroup, "0").Result())(t)
	testenv.Must(client.XGroupCreateConsumer(ctx, changes, events.WorkersGroup, "pod-1-x").Result())(t)
	ask("GET", "/api/v1/workers", `"name":"pod-1-x","state":"live","live":true`, http.StatusOK)
	ask("DELETE", "/api/v1/workers/pod-1-x", "is live", http.StatusConflict)
	testenv.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: changes, Values: []string{"a", "b"}}).Result())(t)
	testenv.Must(client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: events.WorkersGroup, Consumer: "pod-1-y", Streams: []string{changes, ">"}}).Result())(t)
	time.Sleep(stream.LiveFor)
	ask("GET", "/api/v1/workers", `"name":"pod-1-x","state":"not heard","live":false`, http.StatusOK)
	ask("DELETE", "/api/v1/workers/pod-1-y", "no other worker has taken over", http.StatusConflict)
	ask("DELETE", "/api/v1/workers/pod-1-x", `"name":"pod-1-x","state":"not heard"`, http.StatusOK)
	ask("DELETE", "/api/v1/workers/pod-1-z", "no worker has this name", http.StatusNotFound)
}
