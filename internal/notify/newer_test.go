package notify

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// publishNewer publishes a result of a newer version.
func (w *world) publishNewer() {
	w.t.Helper()
	const document = `{"specversion":"1.0","id":"t1","source":"/x","type":"lockstep.result.synced.v2","data":{"repo":7}}`
	must(w.redis.XAdd(w.t.Context(), &redis.XAddArgs{Stream: namespace.Results(), Values: []string{"_watermill_message_uuid", "t1", "payload", document}}).Result())(w.t)
}

// awaitLog waits until text was logged.
func (w *world) awaitLog(text string) {
	w.t.Helper()
	w.eventually(func() bool { return strings.Contains(w.log.String(), text) }, "log contains %q", text)
}

// A result of a newer version is left to a newer process; the results before it are queued.
func TestResultOfNewerVersionIsLeftToIt(t *testing.T) {
	w, apps := newApp(t)
	w.run()
	w.publish(synced(t, "a1", "docs", "acme/a"))
	w.publishNewer()
	w.publish(synced(t, "a22", "docs", "acme/a"))
	w.await(OutcomeDelivered, 1)
	w.awaitLog("notifications paused, will retry")
	if posts := apps.await(atLeast(1)); len(posts) != 1 || posts[0].result.ID != "a1" {
		t.Errorf("%d posts, want only that of the earlier result", len(posts))
	}
	if logged := w.log.String(); !strings.Contains(logged, "lockstep.result.synced.v2") || strings.Contains(logged, "level=ERROR") {
		t.Errorf("the reason is not logged: %s", logged)
	}

	// A newer version reads the result, which advances the group.
	read := must(w.redis.XReadGroup(t.Context(), &redis.XReadGroupArgs{
		Group: Group, Consumer: "tomorrow", Streams: []string{namespace.Results(), ">"}, Count: 1, Block: -1,
	}).Result())(t)
	must(w.redis.XAck(t.Context(), namespace.Results(), Group, read[0].Messages[0].ID).Result())(t)
	w.await(OutcomeDelivered, 1)
	if posts := apps.await(atLeast(2)); posts[1].result.ID != "a22" {
		t.Errorf("sent %s, want the next result", posts[1].result.ID)
	}
}

// The result is skipped if no newer version reads it in time.
func TestResultOfNewerVersionIsSkippedAfterAWhile(t *testing.T) {
	w, _ := newApp(t)
	w.run(func(c *Config) { c.newer = 100 * time.Millisecond })
	w.publishNewer()
	w.publish(synced(t, "a1", "docs", "acme/a"))
	w.await(OutcomeDelivered, 1)
	if logged := w.log.String(); strings.Count(logged, "level=ERROR") != 1 || !strings.Contains(logged, "it needs a newer version") {
		t.Errorf("want one error that says that it was skipped: %s", logged)
	}
}

// Anyone who can write to Redis can choose an entry's ID. An entry with a time in the future must not block later results.
func TestResultWithFutureIDIsSkipped(t *testing.T) {
	w, _ := newApp(t)
	w.run()
	must(w.redis.XAdd(t.Context(), &redis.XAddArgs{
		Stream: namespace.Results(), ID: "99999999999999-0", Values: []string{"payload", `{"type":"lockstep.result.any.v9"}`},
	}).Result())(t)
	w.publish(synced(t, "a1", "docs", "acme/a"))
	w.await(OutcomeDelivered, 1)
}

// An item of a newer version waits for a process of that version, then becomes a dead letter.
func TestItemOfNewerVersion(t *testing.T) {
	w, _ := newApp(t)
	n := w.fed(synced(t, "a1", "docs", "acme/a"))
	box := n.outbox.prefix + "box:docs acme/a"
	head := must(w.redis.LIndex(t.Context(), box, 0).Result())(t)
	tomorrow := strings.Replace(head, `"version":1`, `"version":2`, 1)
	if tomorrow == head {
		t.Fatalf("no version in %s", head)
	}
	must(w.redis.LSet(t.Context(), box, 0, tomorrow).Result())(t)
	outcome, s, err := n.attempt(t.Context(), w.claimOne(n))
	if outcome != "" || s.what != isBack || err == nil {
		t.Errorf("%q, %+v, %v; want it returned", outcome, s, err)
	}
	n.cfg.newer = time.Nanosecond
	w.lapse("docs", "acme/a")
	c := w.claimOne(n)
	outcome, s, err = n.attempt(t.Context(), c)
	if outcome != OutcomeGivenUp || s.what != isDead || err == nil {
		t.Fatalf("%q, %+v, %v; want a dead letter", outcome, s, err)
	}
	must(0, n.settle(t.Context(), c, s))(t)
	if letters := w.letters(); len(letters) != 1 || !strings.Contains(letters[0].Original["payload"], string(events.ResultSynced)) {
		t.Errorf("letters %+v", letters)
	}
}
