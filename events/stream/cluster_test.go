package stream_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

// onCluster is a Cluster that is flushed before each test.
type onCluster struct {
	*redistest.Cluster
	client *redis.ClusterClient
}

func (c *onCluster) start(t testing.TB, name string, change func(*stream.SubscriberConfig)) *worker {
	t.Helper()
	return startAt(t, c.URL(), c.Nodes[0], name, change)
}

// each runs a command on every node.
func (c *onCluster) each(t testing.TB, args ...any) {
	t.Helper()
	for _, node := range c.Nodes {
		if err := node.Client().Do(context.Background(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
}

// keys returns the sorted keys of all nodes, and their slots.
func (c *onCluster) keys(t testing.TB) (keys []string, slots map[int64]bool) {
	t.Helper()
	slots = make(map[int64]bool)
	for _, node := range c.Nodes {
		found, err := node.Client().Keys(context.Background(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, found...)
	}
	for _, key := range keys {
		slot, err := c.client.ClusterKeySlot(context.Background(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		slots[slot] = true
	}
	slices.Sort(keys)
	return keys, slots
}

// move moves the slot of all keys to another node, key by key, as redis-cli --cluster reshard does.
func (c *onCluster) move(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	slot := c.client.ClusterKeySlot(ctx, topic).Val()
	from, to := 0, 1
	for i, node := range c.Nodes {
		if node.Client().Exists(ctx, topic).Val() == 1 { // the others answer MOVED
			from, to = i, (i+1)%len(c.Nodes)
		}
	}
	source, target := c.Nodes[from].Client(), c.Nodes[to].Client()
	id := func(client redis.UniversalClient) string { return client.Do(ctx, "CLUSTER", "MYID").Val().(string) }
	run := func(client redis.UniversalClient, args ...any) {
		t.Helper()
		if err := client.Do(ctx, args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	run(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(source))
	run(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(target))
	for {
		keys, err := source.ClusterGetKeysInSlot(ctx, int(slot), 1).Result()
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		run(source, "MIGRATE", "127.0.0.1", c.Nodes[to].Port(), keys[0], 0, 5000)
	}
	run(target, "CLUSTER", "SETSLOT", slot, "NODE", id(target))
	run(source, "CLUSTER", "SETSLOT", slot, "NODE", id(target))
}

func TestOnACluster(t *testing.T) {
	t.Parallel()
	cluster := &onCluster{Cluster: redistest.StartCluster(t)}
	client := dial(t, cluster.URL()).(*redis.ClusterClient)
	cluster.client = client
	ctx := context.Background()
	brief := func(c *stream.SubscriberConfig) {
		c.MaxIdleTime, c.ClaimInterval = 500*time.Millisecond, 100*time.Millisecond
	}

	for name, test := range map[string]func(t *testing.T){
		"an entry is kept by heartbeats and settled with what came of it": func(t *testing.T) {
			entry := add(t, client, topic, "c1", "{}")
			few := func(c *stream.SubscriberConfig) { c.MaxIdleTime = 4 * time.Second } // a heartbeat each second
			m := cluster.start(t, "a", few).next()
			d := delivery(t, m)
			cluster.start(t, "b", few) // would take a lapsed entry
			began := client.ZScore(ctx, due, entry).Val()
			eventually(t, "its due moment is pushed on", func() bool { return client.ZScore(ctx, due, entry).Val() > began+500 })
			if n := pending(t, client)["a"]; n != 1 || d.Attempt() != 1 {
				t.Errorf("%d pending, attempt %d; want it pending, the first time", n, d.Attempt())
			}
			s := result()
			s.Guard = &stream.Guard{Key: lease, Owner: "me", Fence: 7}
			if err := d.Settle(ctx, s); !errors.Is(err, stream.ErrGuard) || client.Exists(ctx, results, state).Val() != 0 {
				t.Fatalf("without the lease: %v; want ErrGuard and no change", err)
			}
			client.HSet(ctx, lease, "owner", "me", "fence", "7", "expires", time.Now().Add(time.Minute).UnixMicro())
			if err := d.Settle(ctx, s); err != nil {
				t.Fatal(err)
			}
			m.Ack()
			if got := client.HGet(ctx, state, "head").Val(); got != "abc" || length(t, client, results) != 1 {
				t.Errorf("state %q, %d results", got, length(t, client, results))
			}
			clean(t, client)
		},
		"what is given up can be put back, and dropped": func(t *testing.T) {
			w := cluster.start(t, "a", nil)
			publish(t, client, 1)
			letters := deadLetters(t, client)
			giveUp(t, w, 1, "r")
			first := list(t, letters, stream.Query{})
			if _, _, err := letters.Retry(ctx, first[0].ID); err != nil {
				t.Fatal(err)
			}
			giveUp(t, w, 1, "r")
			second := list(t, letters, stream.Query{Reason: "r"})
			if len(second) != 1 || second[0].Entry == first[0].Entry {
				t.Fatalf("letters %+v; want one of another entry", second)
			}
			if n, err := letters.Drop(ctx, second[0].ID); err != nil || n != 1 || length(t, client, dead) != 0 {
				t.Errorf("dropped %d, %v", n, err)
			}
			clean(t, client)
		},
		"a key has one message in flight, whose handler settles its siblings": func(t *testing.T) {
			publishKeyed(t, client, "hot", 30)
			w := cluster.start(t, "a", keyed(8, time.Minute)) // longer than the test
			other := w.next()
			eventually(t, "the rest is parked", func() bool { return pending(t, client)["(parked)"] == 29 })
			other.Ack()
			m := w.next() // unparked
			d := delivery(t, m)
			siblings := allSiblings(t, d, 10)
			if len(siblings) != 28 {
				t.Fatalf("%d siblings; want 28", len(siblings))
			}
			if err := d.Defer(ctx, []string{siblings[0].Entry}, time.Minute); err != nil {
				t.Error(err)
			}
			for i, s := range siblings {
				siblings[i].Outputs = []stream.Output{{Stream: results, Message: message.NewMessage(s.Entry, nil)}}
			}
			if n, err := d.SettleSiblings(ctx, nil, siblings); err != nil || n != 28 || length(t, client, results) != 28 {
				t.Errorf("%d settled, %v, %d results; want 28", n, err, length(t, client, results))
			}
			m.Ack()
			nothingParked(t, client)
		},
		"two share the work, and that of one that dies goes to the other": func(t *testing.T) {
			const total = 200
			few := func(c *stream.SubscriberConfig) { c.Window, c.MaxIdleTime = 8, time.Second }
			a, b := cluster.start(t, "a", few), cluster.start(t, "b", few)
			publish(t, client, total)
			held := a.next()
			a.gate.cut.Store(true)
			seen := make(map[string]int)
			for len(seen) < total {
				m := b.next()
				seen[m.UUID]++
				if m.UUID == held.UUID && delivery(t, m).Delivered() != 2 {
					t.Errorf("what the dead one had is delivery %d; want 2", delivery(t, m).Delivered())
				}
				m.Ack()
			}
			a.gate.cut.Store(false)
			<-held.Context().Done()
			if err := delivery(t, held).Settle(ctx, result()); !errors.Is(err, stream.ErrNotOwner) || client.Exists(ctx, results).Val() != 0 {
				t.Errorf("the one that was cut off settles: %v; want ErrNotOwner", err)
			}
			held.Ack()
			for id, n := range seen {
				if n != 1 {
					t.Errorf("%s came %d times", id, n)
				}
			}
			clean(t, client)
		},
		"an entry without a due moment is found": func(t *testing.T) {
			publish(t, client, 1)
			client.XGroupCreate(ctx, topic, group, "0")
			if err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: group, Consumer: "alien", Streams: []string{topic, ">"}, Block: -1}).Err(); err != nil {
				t.Fatal(err)
			}
			cluster.start(t, "a", brief).next().Ack()
			clean(t, client)
		},
		"streams are trimmed, and their figures are right": func(t *testing.T) {
			cluster.each(t, "CONFIG", "SET", "stream-node-max-entries", 1)
			defer cluster.each(t, "CONFIG", "SET", "stream-node-max-entries", 100)
			old(t, client, topic, 10)
			old(t, client, dead, 3)
			read(t, client, topic, group, 9, "7-0")
			g, _ := stats(t, client).Group(group)
			if s := stats(t, client); s.Length != 10 || s.Dead != 3 || s.Bytes <= 0 || g.Pending != 1 || g.Lag != redistest.Lag(1) || g.Consumers != 1 {
				t.Errorf("figures %+v", s)
			}
			observed := trims{stream: topic}
			trimmer := stream.Trimmer{Redis: client, DeadLen: 1, DeadAge: 100 * 365 * 24 * time.Hour, Observe: observed.observe, Streams: []stream.Retention{{Topic: topic}}}
			if err := trimmer.Pass(ctx); err != nil {
				t.Fatal(err)
			}
			if s := stats(t, client); s.Length != 4 || s.First != "7-0" || s.Dead != 1 || observed.Settled != 6 {
				t.Errorf("after a pass, which reported %+v: %+v", observed.Trim, s)
			}
		},
		"a slot that moves to another node is followed": func(t *testing.T) {
			workers := []*worker{cluster.start(t, "a", nil), cluster.start(t, "b", nil)}
			settled, stop := settleAll(nil, workers...)
			defer stop()
			var f traffic
			halt := f.flow(t, client)
			defer halt()
			for range 2 {
				done := len(settled())
				eventually(t, "work goes on", func() bool { return len(settled()) >= done+100 })
				cluster.move(t)
			}
			done := len(settled())
			eventually(t, "work goes on after the last move", func() bool { return len(settled()) >= done+100 })
			halt()
			settledOnce(t, client)
			if has := len(entries(t, client, topic)); has != len(f.entries()) {
				t.Errorf("%d entries, of %d that were published", has, len(f.entries()))
			}
		},
		"all keys are in one slot": func(t *testing.T) {
			publishKeyed(t, client, "hot", 4)
			w := cluster.start(t, "a", func(c *stream.SubscriberConfig) {
				keyed(8, time.Minute)(c)
				c.NackResendSleep = time.Hour
			})
			w.next().Nack() // counted, and in the parked index
			giveUp(t, w, 1, "r")
			s := result()
			s.Guard = &stream.Guard{Key: lease, Owner: "me", Fence: 7}
			client.HSet(ctx, lease, "owner", "me", "fence", "7", "expires", time.Now().Add(time.Minute).UnixMicro())
			m := w.next()
			if err := delivery(t, m).Settle(ctx, s); err != nil {
				t.Fatal(err)
			}
			m.Ack()
			m = w.next() // not settled
			want := []string{topic, dead, due, failures, parkedIndex, labels, results, state, lease}
			slices.Sort(want)
			if keys, slots := cluster.keys(t); !slices.Equal(keys, want) || len(slots) != 1 {
				t.Errorf("in %d slots: %q; want %q in one", len(slots), keys, want)
			}
			m.Ack()
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster.each(t, "FLUSHALL")
			test(t)
			if keys, slots := cluster.keys(t); len(slots) != 1 {
				t.Errorf("in %d slots: %q; want one", len(slots), keys)
			}
		})
	}
}
