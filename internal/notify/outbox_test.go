package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/view"
)

// nobody returns the state of an idle process.
func nobody() inFlight { return inFlight{busy: map[string]int{}, slow: map[string]time.Time{}} }

// fed returns a notifier that is not running and has fed results.
func (w *world) fed(results ...events.Result) *Notifier {
	w.t.Helper()
	n := must(New(w.config()))(w.t)
	last := ""
	must(0, n.position(w.t.Context(), &last))(w.t)
	w.publish(results...)
	for must(w.redis.XRevRangeN(w.t.Context(), namespace.Results(), "+", "-", 1).Result())(w.t)[0].ID != last {
		if err := n.feedNext(w.t.Context(), &last); err != nil {
			w.t.Fatal(err)
		}
	}
	return n
}

// claimOne claims one item.
func (w *world) claimOne(n *Notifier) claim {
	w.t.Helper()
	claims, _, err := n.outbox.claim(w.t.Context(), nobody())
	if err != nil || len(claims) != 1 {
		w.t.Fatalf("%d claims, %v", len(claims), err)
	}
	return claims[0]
}

// lapse makes the first item of a box due.
func (w *world) lapse(app, repo string) {
	w.t.Helper()
	for key, member := range map[string]string{"due:" + app: repo, "apps": app} {
		must(w.redis.ZAdd(w.t.Context(), namespace.Notifications()+":"+key, redis.Z{Score: 1, Member: member}).Result())(w.t)
	}
}

// After a claim has ended, its old holder may report a delivery but no failure. The next item is not sent until the new
// holder has settled.
func TestSettleAfterTheClaimEnded(t *testing.T) {
	for name, tc := range map[string]struct {
		late    settlement
		waiting int64
		failed  int
	}{
		"failed":   {settlement{what: isFailed, delay: time.Hour}, 2, 1},
		"given up": {settlement{what: isDead, reason: reasonUsedUp}, 2, 1},
		"returned": {settlement{what: isBack}, 2, 1},
		"done":     {settlement{what: isDone}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ctx := t.Context()
			w.watch("docs", "http://127.0.0.1:1/", "acme/a")
			n := w.fed(synced(t, "1", "docs", "acme/a"), synced(t, "2", "docs", "acme/a"))
			first := w.claimOne(n)
			w.lapse("docs", "acme/a")
			second := w.claimOne(n) // possibly in the same millisecond
			for range 2 {           // settled twice, as if the first reply had been lost
				if err := n.outbox.settle(ctx, first, tc.late); err != nil {
					t.Fatal(err)
				}
			}
			if claims, _, err := n.outbox.claim(ctx, nobody()); len(claims) != 0 || err != nil {
				t.Errorf("%d claims in addition to the second, %v", len(claims), err)
			}
			for range 2 {
				if err := n.outbox.settle(ctx, second, settlement{what: isFailed}); err != nil {
					t.Fatal(err)
				}
			}
			if got := w.waiting(); got != tc.waiting || len(w.letters()) != 0 {
				t.Fatalf("%d wait, want %d; %d letters", got, tc.waiting, len(w.letters()))
			}
			if c := w.claimOne(n); c.failed != tc.failed || (c.item.ID == first.item.ID) != (tc.failed > 0) {
				t.Errorf("%d failed attempts of %s, want %d", c.failed, c.item.Entry, tc.failed)
			}
		})
	}
}

// Claims made in the same millisecond have different tokens.
func TestClaimsInTheSameMillisecond(t *testing.T) {
	w := newWorld(t)
	w.watch("docs", "http://127.0.0.1:1/", "acme/a")
	n := w.fed(synced(t, "1", "docs", "acme/a"))
	first := w.claimOne(n)
	ends := w.redis.ZScore(t.Context(), n.outbox.prefix+"due:docs", "acme/a").Val()
	w.lapse("docs", "acme/a")
	second := w.claimOne(n)
	w.redis.ZAdd(t.Context(), n.outbox.prefix+"due:docs", redis.Z{Score: ends, Member: "acme/a"})
	if err := n.outbox.settle(t.Context(), first, settlement{what: isDead, reason: reasonUsedUp}); err != nil || w.waiting() != 1 {
		t.Errorf("a claim that has ended moved another one's item to the dead letters: %v", err)
	}
	if err := n.outbox.settle(t.Context(), second, settlement{what: isDone}); err != nil || w.waiting() != 0 {
		t.Errorf("%d queued, %v", w.waiting(), err)
	}
}

// Slow apps have one post in flight each, and at most half of all.
func TestSlowAppsUseAtMostHalf(t *testing.T) {
	w := newWorld(t)
	var results []events.Result
	repos := []string{"acme/a", "acme/b", "acme/c"}
	for i := range 8 {
		app := fmt.Sprint("slow", i)
		w.watch(app, "http://127.0.0.1:1/", repos...)
		for _, repo := range repos {
			results = append(results, synced(t, app+repo, app, repo))
		}
	}
	w.watch("fast", "http://127.0.0.1:1/", repos...)
	for _, repo := range repos {
		results = append(results, synced(t, "fast"+repo, "fast", repo))
	}
	n := w.fed(results...)
	n.outbox.cfg.Total, n.outbox.cfg.PerApp = 8, 2
	f := nobody()
	for i := range 8 { // each app was slow once, and the first still is
		f.begin(fmt.Sprint("slow", i))
		f.end(landing{app: fmt.Sprint("slow", i), attempted: true, slow: true})
	}
	f.begin("slow0")
	claims, _, err := n.outbox.claim(t.Context(), f)
	took := map[string]int{}
	slow := 0
	for _, c := range claims {
		took[c.app]++
		if c.app != "fast" {
			slow++
		}
		if c.app != "fast" && took[c.app] > 1 {
			t.Errorf("%d posts to %s", took[c.app], c.app)
		}
	}
	if err != nil || slow != 3 || took["slow0"] != 0 || took["fast"] != 2 {
		t.Errorf("claimed %v, %v; want three slow ones beside the first, and two of the fast one", took, err)
	}
	f.end(landing{app: "slow0", attempted: true})
	if _, known := f.slow["slow0"]; known || f.posts != 0 || len(f.busy) != 0 {
		t.Errorf("an app that was fast again still counts as slow: %+v", f)
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
	n.outbox.cfg.Total = 4
	f := nobody()
	for range 3 {
		f.begin("much")
	}
	claims, _, err := n.outbox.claim(t.Context(), f)
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
			if err := spoil(w.redis, n.outbox.prefix+"box:docs acme/a"); err != nil {
				t.Fatal(err)
			}
			w.run(func(c *Config) { c.BoxItems = 3 })
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
	w.run(func(c *Config) { c.AppBytes, c.Schedule = 40_000, []time.Duration{0, time.Hour} })
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
	body := `{"x":1}`
	for id, want := range map[string]bool{
		idOf(events.Result{ID: "r"}, "docs"): true, "": false, "msg_": false, "msg_1.2": false, "msg_AAAAAAAAAAAAAAAAAAAAAAA\n": false, strings.Repeat("x", 28): false,
	} {
		_, err := itemOf(redis.XMessage{Values: map[string]any{"_watermill_message_uuid": id, "app": "docs", "repo": "acme/a", "ref": "", "payload": body}})
		if (err == nil) != want {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, short := range []string{"whsec_", "whsec_AAAA", "x", "123456789abcdef"} {
		if _, err := signature([]string{secret, short}, "i", time.Now(), nil); !errors.Is(err, errShort) {
			t.Errorf("%q signs: %v", short, err)
		}
	}
}

// TestTwoPushesThatChangeAllViewsWait queues the results of all views of a repository, twice, for an app that is away.
func TestTwoPushesThatChangeAllViewsWait(t *testing.T) {
	w := newWorld(t)
	n := must(New(w.config()))(t)
	last := ""
	must(0, n.position(t.Context(), &last))(t)
	repo, body := must(events.ParseRepoPath("acme/widgets"))(t), strings.Repeat("x", 1200)
	for push := range 2 {
		for from := 0; from < view.MaxViews; from += feedItems {
			b := batch{last: last}
			for i := range feedItems {
				b.items = append(b.items, item{ID: fmt.Sprintf("%d/%d", push, from+i), Type: events.ResultView, App: "docs", Repo: repo, Entry: last, Body: body})
			}
			if behind, lost, err := n.outbox.feed(t.Context(), b); behind != "" || lost > 0 || err != nil {
				t.Fatalf("push %d, view %d: behind %q, %d lost, %v", push+1, from, behind, lost, err)
			}
		}
	}
	if waiting := w.waiting(); waiting != 2*view.MaxViews {
		t.Errorf("%d wait", waiting)
	}
}
