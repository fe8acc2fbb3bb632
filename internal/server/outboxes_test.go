package server_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
)

func TestOutboxes(t *testing.T) {
	t.Parallel()
	client, ctx, prefix := redistest.Start(t).Client(), t.Context(), events.DefaultNamespace.Notifications()+":"
	later := float64(time.Now().Add(time.Hour).UnixMilli())
	_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error { // as package notify keeps them
		pipe.HSet(ctx, prefix+"counts", "docs", 2)
		pipe.HSet(ctx, prefix+"sizes", "docs", 100)
		pipe.ZAdd(ctx, prefix+"apps", redis.Z{Score: later, Member: "docs"})
		pipe.ZAdd(ctx, prefix+"heads:docs", redis.Z{Score: 1, Member: "acme/widgets"}, redis.Z{Score: 2, Member: "acme/gadgets"})
		pipe.ZAdd(ctx, prefix+"due:docs", redis.Z{Score: later, Member: "acme/widgets"})
		pipe.RPush(ctx, prefix+"box:docs acme/widgets", `1 {"entry":"1795223511284-0","_watermill_message_uuid":"msg_1"}`)
		pipe.RPush(ctx, prefix+"box:docs acme/gadgets", `2 {}`)
		pipe.HSet(ctx, prefix+"tries", "docs acme/widgets", 3)
		pipe.HSet(ctx, prefix+"errors:docs", "acme/widgets", "1795223511284 the app answered 503")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := asker(t, server.Config{Outboxes: &operate.Outboxes{Cells: leasesOf(client).Cells}})
	for _, tc := range []struct{ method, path, want string }{
		{"GET", "/api/v1/outboxes", `"apps":[{"app":"docs","waiting":2,"bytes":100,"repositories":2,"next":`},
		{"GET", "/api/v1/outboxes/docs", `"id":"msg_1","waiting":1,"failed_attempts":3`},
		{"GET", "/api/v1/outboxes/docs", `"since":"2026-11-21T01:11:51.284Z","error":"the app answered 503"`},
		{"GET", "/api/v1/outboxes/docs?limit=1", `"more":true`},
		{"GET", "/api/v1/outboxes/none", `{"repositories":[]}`},
		{"POST", "/api/v1/outboxes/docs/send", `{"app":"docs","repositories":1}`},
		{"POST", "/api/v1/outboxes/docs/send", `{"app":"docs","repositories":0}`},
	} {
		ask(tc.method, tc.path, tc.want, http.StatusOK)
	}
	ask("GET", "/api/v1/outboxes/docs?limit=x", `"error":`, http.StatusBadRequest)
}
