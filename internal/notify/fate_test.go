package notify

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/watch"
)

func TestGoneSilencesTheWatch(t *testing.T) {
	w := newWorld(t)
	apps := newReceiver(t, func(_ http.ResponseWriter, p post) int {
		if p.path == "/docs" {
			return http.StatusGone
		}
		return http.StatusOK
	})
	w.signsFor(apps.URL)
	w.watch("docs", apps.URL+"/docs", "acme/a")
	w.watch("site", apps.URL+"/site", "acme/a")
	stop := w.run()
	stop() // creates the group
	for i := range 3 {
		w.publish(synced(t, fmt.Sprint("d", i), "docs", "acme/a"), synced(t, fmt.Sprint("s", i), "site", "acme/a"))
	}
	w.run()
	w.await(OutcomeGone, 3)
	set := must(w.registry.Of(t.Context(), must(events.ParseRepoPath("acme/a"))(t)))(t)
	if s := set.Watches[0].Silenced; !strings.HasSuffix(s, "Z answered 410 Gone") || set.Watches[1].Silenced != "" {
		t.Errorf("silenced: %q, the other %q", s, set.Watches[1].Silenced)
	}
	w.publish(synced(t, "late", "docs", "acme/a"), synced(t, "last", "site", "acme/a"))
	posts := apps.await(func(p []post) bool { return slices.ContainsFunc(p, func(p post) bool { return p.result.ID == "last" }) })
	posted := 0
	for _, p := range posts {
		if p.path == "/docs" {
			posted++
		}
	}
	letters := w.letters()
	if posted != 1 || len(posts) != 5 || len(letters) != 3 {
		t.Fatalf("%d posts, %d of them to the app that answers 410, %d dead letters", len(posts), posted, len(letters))
	}
	for _, l := range letters {
		if l.Reason != "gone" {
			t.Errorf("reason %q", l.Reason)
		}
	}
}

func TestDeadLetterPutBack(t *testing.T) {
	w := newWorld(t)
	var up atomic.Bool
	apps := newReceiver(t, func(http.ResponseWriter, post) int {
		if up.Load() {
			return http.StatusOK
		}
		return http.StatusBadRequest
	})
	w.signsFor(apps.URL)
	w.watch("docs", apps.URL+"/docs", "acme/a")
	w.run(soon(2))
	result := synced(t, "r1", "docs", "acme/a")
	w.publish(result)
	w.await(OutcomeGivenUp, 1)
	letter := w.letters()[0]
	read, err := events.ParseResult(must(letter.Message())(t).Payload)
	if err != nil || read.ID != "r1" || letter.Entry == "" || letter.Error != "answered 400 Bad Request" {
		t.Fatalf("letter %+v is parsed as %+v, %v", letter, read, err)
	}
	up.Store(true)
	if _, _, err := w.dead().Retry(t.Context(), letter.ID); err != nil {
		t.Fatal(err)
	}
	w.await(OutcomeDelivered, 1)
	posts := apps.await(atLeast(3))
	if last := posts[2]; len(posts) != 3 || last.id() != posts[0].id() || string(last.body) != string(posts[0].body) || last.status != 200 {
		t.Errorf("%d posts, the last %+v", len(posts), last)
	}
	if n := w.redis.XLen(t.Context(), namespace.Notifications()).Val(); n != 0 || len(w.letters()) != 0 {
		t.Errorf("%d entries and %d letters remain", n, len(w.letters()))
	}
	// An entry that is not a notification becomes a dead letter and blocks nothing.
	must(w.redis.XAdd(t.Context(), &redis.XAddArgs{Stream: namespace.Notifications(), Values: []string{"what", "ever"}}).Result())(t)
	w.publish(synced(t, "r2", "docs", "acme/a"))
	w.await(OutcomeDelivered, 1)
	w.awaitLetters(1)
	if l := w.letters()[0]; l.Reason != "malformed" || l.Original["payload"] != `{"what":"ever"}` {
		t.Errorf("letter %+v", l)
	}
}

func TestFullOutbox(t *testing.T) {
	w := newWorld(t)
	apps := newReceiver(t, func(http.ResponseWriter, post) int { return http.StatusInternalServerError })
	w.signsFor(apps.URL)
	w.watch("docs", apps.URL+"/docs", "acme/a")
	w.run(func(c *Config) { c.boxItems, c.schedule = 3, []time.Duration{0, time.Hour} })
	for i := range 5 {
		w.publish(synced(t, fmt.Sprint("a", i), "docs", "acme/a"))
	}
	w.awaitLetters(2)
	var lost []string
	for _, l := range w.letters() {
		r := must(events.ParseResult([]byte(l.Original["payload"])))(t)
		lost = append(lost, r.ID+" "+l.Reason)
	}
	if want := []string{"a0 outbox full", "a1 outbox full"}; !slices.Equal(lost, want) || w.waiting() != 3 {
		t.Errorf("lost %q, want %q; %d wait", lost, want, w.waiting())
	}
}

// Neither Redis nor the log contains secrets, whatever the outcome of notifications.
func TestSecretsAreNeitherStoredNorLogged(t *testing.T) {
	w := newWorld(t)
	w.credential("raw", "s3cret-as-it-stands", "", "")
	apps := newReceiver(t, func(rw http.ResponseWriter, p post) int {
		if p.path == "/docs" {
			return http.StatusOK
		}
		rw.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(rw, "the answer repeats s3cret")
		return 0
	})
	w.signsFor(apps.URL)
	w.credential("raw", "s3cret-as-it-stands", "", apps.URL)
	w.watch("docs", apps.URL+"/docs", "acme/a")
	w.put(watch.Watch{App: "raw", URL: "https://git.example.org/acme/a", NotifyURL: apps.URL + "/raw", NotifySecret: "raw"},
		watch.Watch{App: "none", URL: "https://git.example.org/acme/a", NotifyURL: apps.URL + "/none", NotifySecret: "nobody-knows"})
	w.run(soon(2))
	for i := range 3 {
		for _, app := range []string{"docs", "raw", "none"} {
			w.publish(synced(t, fmt.Sprint(i, app), app, "acme/a"))
		}
	}
	w.await(OutcomeGivenUp, 6)
	apps.await(atLeast(9))
	all := w.everything() + w.log.String()
	if !strings.Contains(all, "nobody-knows") || !strings.Contains(all, "attempts used up") {
		t.Error("the search does not cover everything")
	}
	for _, text := range []string{secret, strings.TrimPrefix(secret, "whsec_"), former, "s3cret"} {
		if strings.Contains(all, text) {
			t.Errorf("%q is in Redis or in the log", text)
		}
	}
}

func TestQueuedItemsFollowARename(t *testing.T) {
	w := newWorld(t)
	apps := newReceiver(t, func(_ http.ResponseWriter, p post) int {
		if p.path == "/old" {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	w.signsFor(apps.URL)
	w.watch("docs", apps.URL+"/old", "acme/a")
	w.run(soon(100_000))
	w.publish(synced(t, "1", "docs", "acme/a"))
	w.await(OutcomeFailed, 1)
	from, to := must(events.ParseRepoPath("acme/a"))(t), must(events.ParseRepoPath("acme/z"))(t)
	must(w.registry.Move(t.Context(), from, to, "https://git.example.org/acme/z"))(t)
	w.watch("docs", apps.URL+"/new", "acme/z")
	w.publish(events.Result{ID: "moved", Type: events.ResultMoved, Source: "/x", Time: time.Now().UTC(), Repo: from, To: to})
	w.await(OutcomeDelivered, 2)
	sent := map[string]bool{}
	for _, p := range apps.await(atLeast(3)) {
		sent[p.result.ID] = p.path == "/new"
	}
	if !sent["1"] || !sent["moved"] {
		t.Errorf("sent under the new name: %v", sent)
	}
}

func TestItemsOfARemovedWatchAreDropped(t *testing.T) {
	w := newWorld(t)
	w.watch("docs", "http://127.0.0.1:1/docs", "acme/a")
	w.run(soon(100_000))
	w.publish(synced(t, "1", "docs", "acme/a"))
	w.await(OutcomeFailed, 1)
	must(w.registry.Remove(t.Context(), watch.Key{App: "docs", Repo: must(events.ParseRepoPath("acme/a"))(t)}))(t)
	w.await(OutcomeUnwatched, 1)
	if n := w.waiting(); n != 0 || len(w.letters()) != 0 {
		t.Errorf("%d queued, %d letters", n, len(w.letters()))
	}
}

// A late 410 concerns the URL that answered, not the one that has replaced it.
func TestGoneAfterURLChange(t *testing.T) {
	w := newWorld(t)
	begun, release := make(chan struct{}), make(chan struct{})
	apps := newReceiver(t, func(_ http.ResponseWriter, p post) int {
		if p.path == "/old" {
			close(begun)
			<-release
			return http.StatusGone
		}
		return http.StatusOK
	})
	w.signsFor(apps.URL)
	w.watch("docs", apps.URL+"/old", "acme/a")
	w.run()
	w.publish(synced(t, "1", "docs", "acme/a"))
	<-begun
	w.watch("docs", apps.URL+"/new", "acme/a")
	close(release)
	w.await(OutcomeDelivered, 1)
	set := must(w.registry.Of(t.Context(), must(events.ParseRepoPath("acme/a"))(t)))(t)
	if set.Watches[0].Silenced != "" || len(w.letters()) != 0 {
		t.Errorf("silenced: %q; %d letters", set.Watches[0].Silenced, len(w.letters()))
	}
}
