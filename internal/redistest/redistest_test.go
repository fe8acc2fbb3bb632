package redistest_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
)

func TestRestartKeepsAddressAndData(t *testing.T) {
	t.Parallel()
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
		t.Fatalf("after the restart: %q, %v; want the persisted value", got, err)
	}
}

func TestStopDoesNotFailRunningScripts(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	for range 10 {
		client := server.Client() // a client that has seen a stop may report the server as down for longer
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for {
					err := client.Eval(ctx, "for _ = 1, 20 do redis.call('INCR', KEYS[1]) end", []string{"n"}).Err()
					switch reply, replied := errors.AsType[redis.Error](err); {
					case err == redis.Nil:
					case replied:
						t.Errorf("a script got an error reply during the stop: %v", reply)
						return
					default:
						return
					}
				}
			})
		}
		if err := client.Eval(ctx, "return 1", nil).Err(); err != nil { // by now, scripts are running
			t.Error(err)
		}
		server.Stop()
		callers.Wait()
		server.Restart()
	}
}

func TestStopWithBlockedCommands(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	pipe := server.Client().Pipeline()
	for range 3000 { // so that reading the stream takes a while
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: "s", Values: []any{"a", "b"}})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		client := server.Client()
		var clients sync.WaitGroup
		for range 4 {
			clients.Go(func() { client.XRead(ctx, &redis.XReadArgs{Streams: []string{"s", "$"}, Block: time.Hour}) })
		}
		for range 2 {
			clients.Go(func() { // each write wakes the blocked commands
				for client.Incr(ctx, "n").Err() == nil {
				}
			})
		}
		for range 50 {
			if err := client.Incr(ctx, "n").Err(); err != nil {
				t.Fatal(err)
			}
		}
		server.Stop()
		clients.Wait()
		server.Restart()
	}
}

func TestRestartWaitsForItsPort(t *testing.T) {
	t.Parallel()
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

// TestPortOfStoppedServer binds as a server of another test would, without the option that lets two sockets share a port.
func TestPortOfStoppedServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Stop()
	var alone net.ListenConfig
	alone.Control = func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0) })
	}
	other, err := alone.Listen(t.Context(), "tcp", server.Addr)
	if err == nil {
		_ = other.Close()
		t.Error("another server can take the port of a stopped one")
	}
	if conn, err := net.Dial("tcp", server.Addr); err == nil {
		_ = conn.Close()
		t.Error("a stopped server accepts a connection")
	}
	server.Restart()
	if err := server.Client().Ping(t.Context()).Err(); err != nil {
		t.Errorf("after the restart: %v", err)
	}
}

func TestReplicaOfClusterIsPromoted(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	c.AddReplicas()
	server, err := redisx.Parse(c.URL(), "")
	if err != nil {
		t.Fatal(err)
	}
	client := server.Open()
	defer client.Close()
	ctx := t.Context()
	master, err := client.(*redis.ClusterClient).MasterForKey(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	conn := master.Conn()
	defer conn.Close()
	if err := conn.Set(ctx, "a", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Wait(ctx, 1, time.Minute).Result(); n != 1 || err != nil {
		t.Fatalf("%d replicas (%v)", n, err)
	}
	for i, node := range c.Nodes {
		if node.Addr != master.Options().Addr {
			continue
		}
		c.Fail(i)
		if c.Nodes[i] == node || c.Replicas[i] != node {
			t.Error("the roles are not exchanged")
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		got, err := client.Get(ctx, "a").Result()
		if err == nil && got == "1" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %q (%v)", got, err)
		}
	}
}
