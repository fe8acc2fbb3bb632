package server_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
)

// The streams are those of a deployment: only changes need workers, results none.
func TestScale(t *testing.T) {
	t.Parallel()
	client, namespace := redistest.Start(t).Client(), events.DefaultNamespace
	for range 5 {
		for _, topic := range []string{namespace.Changes(), namespace.Results()} {
			if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: topic, Values: []string{"a", "1"}}).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	testenv.Must(0, client.XGroupCreate(t.Context(), namespace.Changes(), events.WorkersGroup, "0").Err())(t)
	err := client.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: events.WorkersGroup, Consumer: "w1", Streams: []string{namespace.Changes(), ">"}, Block: -1}).Err()
	if err != nil {
		t.Fatal(err)
	}
	cfg := everything()
	cfg.Topic, cfg.Slots = namespace.Changes(), 2
	cfg.Streams = telemetry.NewStreams(client, string(namespace), namespace.Changes(), namespace.Results())
	w := httptest.NewRecorder()
	documented(t, cfg).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/api/v1/scale", nil))
	var got server.Scale
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	if want := (server.Scale{Running: 5, Workers: 1, Wanted: 3, Slots: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
