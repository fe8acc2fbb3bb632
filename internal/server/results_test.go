package server_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/testenv"
)

func TestResultIsShown(t *testing.T) {
	t.Parallel()
	client, ctx, namespace := redistest.Start(t).Client(), t.Context(), events.DefaultNamespace
	ask := asker(t, server.Config{Results: &operate.Results{Cells: leasesOf(client).Cells}})
	change := testenv.Must(events.NewChange(events.Change{URL: "https://git.example/acme/widget.git", App: "docs"}))(t)
	payload := testenv.Must(json.Marshal(events.Result{
		ID: "r1", Type: events.ResultFailed, Source: "/lockstep/worker/w1", Time: time.Now(), Repo: change.Repo, App: "docs",
		Deliveries: []string{change.ID}, Attempts: 1, Class: events.ClassNotFound, Error: "no such repository",
	}))(t)
	entry := testenv.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: namespace.Results(), Values: []string{"payload", string(payload)}}).Result())(t)
	ask("GET", "/api/v1/results/"+entry, `"notifications":[]`, http.StatusOK)
	ask("GET", "/api/v1/results/1-1", "no such result", http.StatusNotFound)
}
