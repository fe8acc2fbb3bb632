package stream_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

// leaveKeys leaves entries that failed, are parked and are owned, and returns the keys of the group.
func leaveKeys(t *testing.T, server *redistest.Server) []string {
	t.Helper()
	client := server.Client()
	publishKeyed(t, client, "hot", 5)
	w := start(t, server, "a", keyed(8, time.Minute))
	if err := delivery(t, w.next()).Nack(context.Background(), time.Hour, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "entries are parked", func() bool { return pending(t, client)["(parked)"] >= 3 })
	w.gate.cut.Store(true) // no consumer re-creates the group
	keys := []string{due, failures, parkedIndex, labels}
	if n := client.Exists(context.Background(), keys...).Val(); n != 4 {
		t.Fatalf("the group has %d keys; want 4", n)
	}
	return keys
}

func pass(t *testing.T, trimmer *stream.Trimmer) {
	t.Helper()
	if err := trimmer.Pass(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestKeysOfADeletedGroupAreRemoved(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, remove := range map[string]func(redis.UniversalClient) error{
		"the group":  func(c redis.UniversalClient) error { return c.XGroupDestroy(ctx, topic, group).Err() },
		"the stream": func(c redis.UniversalClient) error { return c.Del(ctx, topic).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			client := server.Client()
			keys := leaveKeys(t, server)
			trimmer := &stream.Trimmer{Redis: client, Streams: []stream.Retention{{Topic: topic}}}
			for range 3 { // the group exists
				pass(t, trimmer)
			}
			if err := remove(client); err != nil {
				t.Fatal(err)
			}
			pass(t, trimmer)
			if n := client.Exists(ctx, keys...).Val(); n != 4 {
				t.Fatalf("%d keys are left after one pass without the group; want all 4", n)
			}
			pass(t, trimmer)
			if n := client.Exists(ctx, keys...).Val(); n != 0 {
				t.Errorf("%d keys are left after two passes without the group; want none", n)
			}
		})
	}
}

func TestKeysOfARecreatedGroupStay(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	keys := leaveKeys(t, server)
	trimmer := &stream.Trimmer{Redis: client, Streams: []stream.Retention{{Topic: topic}}}
	pass(t, trimmer)
	for range 3 { // missing once, and again, but not in two passes in a row
		client.XGroupDestroy(ctx, topic, group)
		pass(t, trimmer)
		client.XGroupCreate(ctx, topic, group, "0")
		pass(t, trimmer)
	}
	if n := client.Exists(ctx, keys...).Val(); n != 4 {
		t.Errorf("%d keys are left; want all 4", n)
	}
}

// creating creates the group after the Trimmer found it missing, and before it removes the keys.
type creating struct {
	gate
	once   sync.Once
	create func()
}

func (c *creating) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if stream.Forgets(cmd) {
			c.once.Do(c.create)
		}
		return next(ctx, cmd)
	}
}

func TestKeysOfAGroupRecreatedDuringThePassStay(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	keys := leaveKeys(t, server)
	created := false
	hooked := server.Client()
	hooked.AddHook(&creating{create: func() { created = client.XGroupCreate(ctx, topic, group, "0").Err() == nil }})
	trimmer := &stream.Trimmer{Redis: hooked, Streams: []stream.Retention{{Topic: topic}}}
	pass(t, trimmer)
	client.XGroupDestroy(ctx, topic, group)
	pass(t, trimmer)
	pass(t, trimmer)
	if n := client.Exists(ctx, keys...).Val(); n != 4 || !created {
		t.Errorf("%d keys are left, the group is re-created: %t; want all 4", n, created)
	}
}

func TestKeysOfAGroupThatWasNeverSeenStay(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	keys := leaveKeys(t, server)
	client.XGroupDestroy(ctx, topic, group)
	trimmer := &stream.Trimmer{Redis: client, Streams: []stream.Retention{{Topic: topic}}}
	for range 4 {
		pass(t, trimmer)
	}
	if n := client.Exists(ctx, keys...).Val(); n != 4 {
		t.Errorf("%d keys are left; want all 4", n)
	}
}
