package redistest_test

import (
	"context"
	"testing"

	"lockstep/internal/redistest"
)

func TestAServerComesBackAtItsAddress(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	client := server.Client()
	if err := client.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	if err := client.Get(ctx, "k").Err(); err == nil {
		t.Fatal("a stopped server answers")
	}
	server.Restart()
	if got, err := client.Get(ctx, "k").Result(); err != nil || got != "v" {
		t.Fatalf("after the restart: %q, %v; want what was persisted", got, err)
	}
}
