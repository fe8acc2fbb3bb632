package notify

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// fed returns a notifier that is not running and has fed results.
func (w *world) fed(results ...events.Result) *Notifier {
	w.t.Helper()
	n := must(New(w.config()))(w.t)
	last := ""
	must(0, n.position(w.t.Context(), &last))(w.t)
	w.publish(results...)
	for must(w.redis.XRevRangeN(w.t.Context(), namespace.Results(), "+", "-", 1).Result())(w.t)[0].ID != last {
		must(0, n.feedNext(w.t.Context(), &last))(w.t)
	}
	return n
}

// lapse makes the first item of a box due.
func (w *world) lapse(app, repo string) {
	w.t.Helper()
	for key, member := range map[string]string{"due:" + app: repo, "apps": app} {
		must(w.redis.ZAdd(w.t.Context(), namespace.Notifications()+":"+key, redis.Z{Score: 1, Member: member}).Result())(w.t)
	}
}

// Once another process has an item, the old holder's settlement changes nothing, even if it made its claim in the same
// millisecond. The next item is not sent until the new holder has settled.
func TestSettleAfterTheClaimEnded(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.watch("docs", "http://127.0.0.1:1/", "acme/a")
	n := w.fed(synced(t, "1", "docs", "acme/a"), synced(t, "2", "docs", "acme/a"))
	first := w.claimOne(n)
	ends := w.redis.ZScore(ctx, n.outbox.key("due:docs"), "acme/a").Val()
	w.lapse("docs", "acme/a")
	second := w.claimOne(n)
	w.redis.ZAdd(ctx, n.outbox.key("due:docs"), redis.Z{Score: ends, Member: "acme/a"})
	before := w.everything()
	for _, what := range []string{isFailed, isDead, isBack, isDone, isKept} {
		if w.settle(n, first, settlement{what: what, reason: reasonUsedUp}) || w.everything() != before {
			t.Errorf("%s: a claim that has ended was settled", what)
		}
	}
	if claims := w.claimDue(n); len(claims) != 0 {
		t.Errorf("%d claims in addition to the second", len(claims))
	}
	for i := range 2 { // settled twice, as if the first reply had been lost
		if held := w.settle(n, second, settlement{what: isDone}); held != (i == 0) || w.waiting() != 1 {
			t.Fatalf("%d wait, held %v", w.waiting(), held)
		}
	}
	if c := w.claimOne(n); c.item.ID == first.item.ID {
		t.Errorf("%s is claimed again", c.item.Entry)
	}
}

// Apps in trouble have one post in flight each, and at most half of all.
func TestAppsInTroubleUseAtMostHalf(t *testing.T) {
	w := newWorld(t)
	var results []events.Result
	repos := []string{"acme/a", "acme/b", "acme/c"}
	for _, app := range []string{"bad0", "bad1", "bad2", "bad3", "bad4", "bad5", "bad6", "bad7", "good"} {
		w.watch(app, "http://127.0.0.1:1/", repos...)
		for _, repo := range repos {
			results = append(results, synced(t, app+repo, app, repo))
		}
	}
	n := w.fed(results...)
	n.cfg.perApp, n.cfg.total = 1, 100
	for _, c := range w.claimDue(n) {
		s := settlement{what: isFailed}
		if c.app == "good" {
			s.what = isBack
		}
		w.settle(n, c, s)
	}
	n.cfg.perApp, n.cfg.total = 2, 8
	claims, _, err := n.outbox.claim(t.Context(), map[string]int{"bad0": 1}, n.cfg.limits)
	took := map[string]int{}
	for _, c := range claims {
		took[c.app]++
	}
	good, bad := took["good"], len(claims)-took["good"]
	if err != nil || good != 2 || bad != 3 || took["bad0"] != 0 || len(took) != 4 {
		t.Errorf("claimed %v, %v; want one of three apps in trouble beside the first, and two of the good one", took, err)
	}
}

// An app with few items is not delayed by apps with many, even if those have waited longer.
func TestClaimPrefersAppsWithFewPostsInFlight(t *testing.T) {
	w := newWorld(t)
	var results []events.Result
	for _, repo := range []string{"acme/a", "acme/b", "acme/c", "acme/d"} {
		w.watch("much", "http://127.0.0.1:1/", repo)
		results = append(results, synced(t, repo, "much", repo))
	}
	w.watch("little", "http://127.0.0.1:1/", "acme/a")
	n := w.fed(append(results, synced(t, "1", "little", "acme/a"))...)
	w.lapse("much", "acme/d")
	n.cfg.total = 4
	claims, _, err := n.outbox.claim(t.Context(), map[string]int{"much": 3}, n.cfg.limits)
	if err != nil || len(claims) != 1 || claims[0].app != "little" {
		t.Errorf("claimed %+v, %v", claims, err)
	}
}

// A corrupt box delays neither other boxes nor later items.
func TestCorruptBox(t *testing.T) {
	for name, spoil := range map[string]func(c redis.UniversalClient, box string) error{
		"deleted": func(c redis.UniversalClient, box string) error { return c.Del(context.Background(), box).Err() },
		"no item": func(c redis.UniversalClient, box string) error {
			return c.LPush(context.Background(), box, "what", "7 ever", `8 {"id":7,"body":null}`).Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			apps := newReceiver(t, ok)
			w.signsFor(apps.URL)
			w.watch("docs", apps.URL+"/docs", "acme/a", "acme/b")
			n := w.fed(synced(t, "a1", "docs", "acme/a"))
			must(0, spoil(w.redis, n.outbox.key("box:docs acme/a")))(t)
			w.run(func(c *Config) { c.boxItems = 3 })
			w.publish(synced(t, "b1", "docs", "acme/b"), synced(t, "a2", "docs", "acme/a"))
			posts := apps.await(func(p []post) bool {
				return slices.ContainsFunc(p, func(p post) bool { return p.result.ID == "b1" }) && slices.ContainsFunc(p, func(p post) bool { return p.result.ID == "a2" })
			})
			if name == "no item" {
				w.awaitLetters(3)
				if letters := w.letters(); len(letters) != 3 || len(posts) != 3 {
					t.Errorf("%d posts, letters %+v", len(posts), letters)
				}
			}
			w.await(OutcomeDelivered, len(posts))
			if n := w.waiting(); n > 0 {
				t.Errorf("%d wait", n)
			}
		})
	}
}

// When the outboxes of an app exceed its byte limit, the oldest items are dropped.
func TestOutboxIsLimitedByBytes(t *testing.T) {
	w := newWorld(t)
	w.watch("docs", "http://127.0.0.1:1/docs", "acme/a", "acme/b")
	w.watch("site", "http://127.0.0.1:1/site", "acme/a")
	w.run(func(c *Config) { c.appBytes, c.schedule = 40_000, []time.Duration{0, time.Hour} })
	long := func(id, app, repo string) events.Result {
		r := synced(t, id, app, repo)
		r.Type, r.Class, r.Error = events.ResultFailed, events.ClassNetwork, strings.Repeat("x", 12_000)
		return r
	}
	w.publish(synced(t, "s0", "site", "acme/a"), synced(t, "a0", "docs", "acme/a"), long("a1", "docs", "acme/a"), long("b0", "docs", "acme/b"),
		long("b1", "docs", "acme/b")) // three of 12 kB, and a small one
	w.publish(long("b2", "docs", "acme/b"))
	w.awaitLetters(2)
	var lost []string
	for _, l := range w.letters() {
		lost = append(lost, must(events.ParseResult([]byte(l.Original["payload"])))(t).ID+" "+l.Reason)
	}
	if want := []string{"a0 outbox full", "a1 outbox full"}; !slices.Equal(lost, want) || w.waiting() != 4 {
		t.Errorf("lost %q, want %q; %d wait", lost, want, w.waiting())
	}
	held := func(app string) (n int64) {
		for _, key := range w.redis.Keys(t.Context(), namespace.Notifications()+":box:"+app+" *").Val() {
			for _, i := range w.redis.LRange(t.Context(), key, 0, -1).Val() {
				_, document, _ := strings.Cut(i, " ")
				n += int64(len(document))
			}
		}
		return n
	}
	for _, app := range []string{"docs", "site"} {
		if n := must(w.redis.HGet(t.Context(), namespace.Notifications()+":sizes", app).Int64())(t); n != held(app) || n > 40_000 || n == 0 {
			t.Errorf("%s: %d bytes counted, %d stored", app, n, held(app))
		}
	}
}

// A put-back entry with an invalid ID is refused, because the ID becomes a header and is signed.
func TestInvalidIDIsNotPutBack(t *testing.T) {
	for id, want := range map[string]bool{
		idOf(events.Result{ID: "r"}, "docs"): true, "": false, "msg_": false, "msg_1.2": false, "msg_AAAAAAAAAAAAAAAAAAAAAAA\n": false, strings.Repeat("x", 28): false,
	} {
		text := must(json.Marshal(map[string]any{"_watermill_message_uuid": id, "app": "docs", "repo": "acme/a", "ref": "", "payload": `{"x":1}`}))(t)
		if _, err := decode(text); (err == nil) != want {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, short := range []string{"whsec_", "whsec_AAAA", "x", "123456789abcdef"} {
		if _, err := signature([]string{secret, short}, "i", time.Now(), nil); !errors.Is(err, errShort) {
			t.Errorf("%q signs: %v", short, err)
		}
	}
}
