package notify

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

// A stream with lower IDs is read from its beginning: Redis has lost its data, or an operator has repaired a stream with
// an ID in the far future.
func TestNewStreamWithLowerIDs(t *testing.T) {
	w, apps := newApp(t)
	w.run()
	must(w.redis.XAdd(t.Context(), &redis.XAddArgs{Stream: namespace.Results(), ID: "99999999999999-0", Values: []string{"a", "b"}}).Result())(t)
	w.publish(synced(t, "a1", "docs", "acme/a"))
	w.await(OutcomeDelivered, 1)
	must(w.redis.Del(t.Context(), namespace.Results()).Result())(t)
	w.publish(synced(t, "a22", "docs", "acme/a"))
	w.await(OutcomeDelivered, 1)
	w.publish(synced(t, "a333", "docs", "acme/a"))
	w.await(OutcomeDelivered, 1)
	if posts := apps.await(atLeast(3)); posts[1].result.ID != "a22" || posts[2].result.ID != "a333" {
		t.Errorf("sent %s, %s", posts[1].result.ID, posts[2].result.ID)
	}
}

// The stream continues with IDs lower than the last one that was fed: the promoted replica had not received that entry,
// and its clock is behind.
func TestFailoverToReplicaWithOlderGroup(t *testing.T) {
	w, apps := newApp(t)
	w.run()
	w.publish(synced(t, "a1", "docs", "acme/a"))
	w.await(OutcomeDelivered, 1)
	before := must(w.redis.XRange(t.Context(), namespace.Results(), "-", "+").Result())(t)
	must(w.redis.XAdd(t.Context(), &redis.XAddArgs{Stream: namespace.Results(), ID: "99999999999999-0", Values: []string{"a", "b"}}).Result())(t)
	w.awaitGroup("99999999999999-0")
	must(w.redis.TxPipelined(t.Context(), func(replica redis.Pipeliner) error {
		replica.Del(t.Context(), namespace.Results())
		replica.XAdd(t.Context(), &redis.XAddArgs{Stream: namespace.Results(), ID: before[0].ID, Values: before[0].Values})
		return replica.XGroupCreate(t.Context(), namespace.Results(), Group, before[0].ID).Err()
	}))(t)
	w.publish(synced(t, "a22", "docs", "acme/a"))
	w.await(OutcomeDelivered, 1)
	if posts := apps.await(atLeast(2)); len(posts) != 2 || posts[1].result.ID != "a22" {
		t.Errorf("%d posts, the last of %s; want each sent once", len(posts), posts[len(posts)-1].result.ID)
	}
}

// awaitGroup waits until the group has advanced to a result.
func (w *world) awaitGroup(entry string) {
	w.t.Helper()
	w.eventually(func() bool {
		groups := must(w.redis.XInfoGroups(w.t.Context(), namespace.Results()).Result())(w.t)
		return len(groups) == 1 && groups[0].LastDeliveredID == entry
	}, "the group is at %s", entry)
}
