package notify

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// ofTomorrow publishes a result that no version yet writes.
func (w *world) ofTomorrow() {
	w.t.Helper()
	const document = `{"specversion":"1.0","id":"t1","source":"/x","type":"lockstep.result.synced.v2","data":{"repo":7}}`
	must(w.redis.XAdd(w.t.Context(), &redis.XAddArgs{Stream: namespace.Results(), Values: []string{"_watermill_message_uuid", "t1", "payload", document}}).Result())(w.t)
}

// awaitLog returns once that was logged.
func (w *world) awaitLog(text string) {
	w.t.Helper()
	w.eventually(func() bool { return strings.Contains(w.log.String(), text) }, "somebody says %q", text)
}

// TestAResultOfTomorrowIsLeftToANewerVersion, and what is before it is not.
func TestAResultOfTomorrowIsLeftToANewerVersion(t *testing.T) {
	w, apps := newApp(t)
	w.run()
	w.publish(synced(t, "a1", "docs", "acme/a"))
	w.ofTomorrow()
	w.publish(synced(t, "a22", "docs", "acme/a"))
	w.await(OutcomeDelivered, 1)
	w.awaitLog("notifications stand still for now")
	if posts := apps.await(atLeast(1)); len(posts) != 1 || posts[0].result.ID != "a1" {
		t.Errorf("%d posts, want that of what came before it alone", len(posts))
	}
	if said := w.log.String(); !strings.Contains(said, "lockstep.result.synced.v2") || strings.Contains(said, "level=ERROR") {
		t.Errorf("it is not said why: %s", said)
	}

	// A newer version takes it: the group goes on behind it.
	taken := must(w.redis.XReadGroup(t.Context(), &redis.XReadGroupArgs{
		Group: Group, Consumer: "tomorrow", Streams: []string{namespace.Results(), ">"}, Count: 1, Block: -1,
	}).Result())(t)
	must(w.redis.XAck(t.Context(), namespace.Results(), Group, taken[0].Messages[0].ID).Result())(t)
	w.await(OutcomeDelivered, 1)
	if posts := apps.await(atLeast(2)); posts[1].result.ID != "a22" {
		t.Errorf("sent %s, want what comes behind it", posts[1].result.ID)
	}
}

// TestAResultOfTomorrowDoesNotWaitForEver passes it over when no newer version has come.
func TestAResultOfTomorrowDoesNotWaitForEver(t *testing.T) {
	w, _ := newApp(t)
	w.run(func(c *Config) { c.newer = 100 * time.Millisecond })
	w.ofTomorrow()
	w.publish(synced(t, "a1", "docs", "acme/a"))
	w.await(OutcomeDelivered, 1)
	if said := w.log.String(); strings.Count(said, "level=ERROR") != 1 || !strings.Contains(said, "it is for a newer version") {
		t.Errorf("want one error that says that it was passed over: %s", said)
	}
}

// TestAResultOfTheFarFutureIsNotWaitedFor is of an entry whose id somebody made up.
func TestAResultOfTheFarFutureIsNotWaitedFor(t *testing.T) {
	w, _ := newApp(t)
	w.run()
	must(w.redis.XAdd(t.Context(), &redis.XAddArgs{
		Stream: namespace.Results(), ID: "99999999999999-0", Values: []string{"payload", `{"type":"lockstep.result.any.v9"}`},
	}).Result())(t)
	w.publish(synced(t, "a1", "docs", "acme/a"))
	w.await(OutcomeDelivered, 1)
}

// TestANotificationOfTomorrow waits in its box for as long as another may take it, and is a dead letter then.
func TestANotificationOfTomorrow(t *testing.T) {
	w, _ := newApp(t)
	n := w.fed(synced(t, "a1", "docs", "acme/a"))
	box := n.outbox.prefix + "box:docs acme/a"
	head := must(w.redis.LIndex(t.Context(), box, 0).Result())(t)
	tomorrow := strings.Replace(head, `"version":1`, `"version":2`, 1)
	if tomorrow == head {
		t.Fatalf("no version in %s", head)
	}
	must(w.redis.LSet(t.Context(), box, 0, tomorrow).Result())(t)
	outcome, s, err := n.attempt(t.Context(), w.take(n))
	if outcome != "" || s.what != isBack || err == nil {
		t.Errorf("%q, %+v, %v; want it given back", outcome, s, err)
	}
	n.cfg.newer = time.Nanosecond
	w.lapse("docs", "acme/a")
	c := w.take(n)
	outcome, s, err = n.attempt(t.Context(), c)
	if outcome != OutcomeGivenUp || s.what != isDead || err == nil {
		t.Fatalf("%q, %+v, %v; want a dead letter", outcome, s, err)
	}
	must(0, n.settle(t.Context(), c, s))(t)
	if letters := w.letters(); len(letters) != 1 || !strings.Contains(letters[0].Original["payload"], string(events.ResultSynced)) {
		t.Errorf("letters %+v", letters)
	}
}
