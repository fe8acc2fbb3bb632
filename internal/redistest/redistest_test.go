package redistest_test

import (
	"context"
	"net"
	"testing"
	"time"

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

func TestAServerComesBackThoughItsPortIsTakenForAMoment(t *testing.T) {
	server := redistest.Start(t)
	server.Stop()
	other, err := net.Listen("tcp", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, func() { _ = other.Close() })
	server.Restart()
	if err := server.Client().Ping(context.Background()).Err(); err != nil {
		t.Errorf("after the restart: %v", err)
	}
}
