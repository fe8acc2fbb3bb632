package notify

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"lockstep/events"
)

func TestOutboxesShowWhatWaits(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	boxes := Outboxes{Redis: w.redis, Namespace: namespace}
	if apps := must(boxes.Apps(ctx))(t); len(apps) != 0 {
		t.Fatalf("%+v before anything waits", apps)
	}
	if list := must(boxes.Boxes(ctx, "docs", 10))(t); len(list) != 0 {
		t.Fatalf("%+v before anything waits", list)
	}
	w.watch("docs", "http://127.0.0.1:1/", "acme/a", "acme/b")
	w.watch("ci", "http://127.0.0.1:1/", "acme/a")
	n := w.fed(synced(t, "1", "docs", "acme/a"), synced(t, "2", "docs", "acme/a"), synced(t, "3", "docs", "acme/b"), synced(t, "4", "ci", "acme/a"))
	apps := must(boxes.Apps(ctx))(t)
	slices.SortFunc(apps, func(a, b App) int { return int(b.Items - a.Items) })
	if len(apps) != 2 || apps[0].Name != "docs" || apps[0].Items != 3 || apps[0].Repos != 2 || apps[0].Bytes < 100 || apps[1].Name != "ci" || apps[1].Items != 1 {
		t.Errorf("%+v, want docs with 3 of 2 repositories, then ci with 1", apps)
	}
	var failed, posting claim
	for _, c := range w.claimDue(n) {
		switch c.app + " " + c.repo {
		case "docs acme/a":
			failed = c
		case "docs acme/b":
			posting = c
		}
	}
	w.settle(n, failed, settlement{what: isFailed, delay: time.Hour, err: "the app answered 503 " + strings.Repeat("é", maxKept)})
	list := must(boxes.Boxes(ctx, "docs", 10))(t)
	if len(list) != 2 || list[0].Repo != "acme/a" || list[0].Items != 2 || list[0].Failed != 1 || list[0].Posting || time.Until(list[0].Next) < 50*time.Minute ||
		list[0].Queued != events.EntryTime(failed.item.Entry) || list[0].ID != failed.item.ID || list[1].Repo != "acme/b" || !list[1].Posting {
		t.Errorf("%+v, want a failed box and one that is being posted", list)
	}
	if e := list[0].Error; !strings.HasPrefix(e, "the app answered 503 é") || len(e) > maxKept || !utf8.ValidString(e) || time.Since(list[0].ErrorAt).Abs() > time.Minute || list[1].Error != "" {
		t.Errorf("errors %+v, want the first one's, of at most %d bytes", list, maxKept)
	}
	about := must(boxes.About(ctx, must(events.ParseRepoPath("Acme/A"))(t)))(t)
	if len(about) != 2 || about[1] != list[0] || about[0].App != "ci" || !about[0].Posting {
		t.Errorf("%+v, want the boxes of docs and ci", about)
	}
	if failing, apps, err := boxes.Failing(ctx); err != nil || failing != 1 || !slices.Equal(apps, []string{"docs"}) {
		t.Errorf("%d boxes of %q fail, %v; want one of docs", failing, apps, err)
	}
	if list := must(boxes.Boxes(ctx, "docs", 1))(t); len(list) != 1 {
		t.Errorf("%d boxes, want 1", len(list))
	}
	if hastened := must(boxes.SendNow(ctx, "docs"))(t); hastened != 1 {
		t.Errorf("%d boxes are sent now, want the one that waits for a retry", hastened)
	}
	again := w.claimOne(n)
	if again.failed != 1 || again.number != failed.number {
		t.Errorf("claimed %+v, want the failed item", again)
	}
	if !w.settle(n, posting, settlement{what: isDone}) {
		t.Error("the claim of an item that was being posted is lost")
	}
	w.settle(n, again, settlement{what: isDone, reason: reasonAccepted})
	if list := must(boxes.Boxes(ctx, "docs", 10))(t); len(list) != 1 || list[0].Items != 1 || list[0].Error != "" || !list[0].ErrorAt.IsZero() {
		t.Errorf("%+v, want no error of an earlier item", list)
	}
	if kept := w.redis.Exists(ctx, boxes.key("errors:docs")).Val(); kept != 0 {
		t.Error("the error of a delivered item is kept")
	}
	if hastened := must(boxes.SendNow(ctx, "none"))(t); hastened != 0 {
		t.Errorf("%d boxes of an unknown app", hastened)
	}
}

// An app that accepts a notification again is posted to about all its repositories at once, but not because of a repository
// that fails alone.
func TestRecoveredAppIsPostedToAtOnce(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	boxes := Outboxes{Redis: w.redis, Namespace: namespace}
	w.watch("docs", "http://127.0.0.1:1/", "acme/a", "acme/b", "acme/c")
	var results []events.Result
	for i, repo := range []string{"acme/a", "acme/b", "acme/c", "acme/c", "acme/c", "acme/c"} {
		results = append(results, synced(t, strconv.Itoa(i), "docs", repo))
	}
	n, claimed := w.fed(results...), map[string]claim{}
	take := func() {
		for _, c := range w.claimDue(n) {
			claimed[c.repo] = c
		}
	}
	settle := func(repo string, s settlement, due ...string) {
		t.Helper()
		c, ok := claimed[repo]
		if !ok {
			t.Fatalf("%s is not due", repo)
		}
		delete(claimed, repo)
		w.settle(n, c, s)
		take()
		if got := slices.Sorted(maps.Keys(claimed)); !slices.Equal(got, due) {
			t.Errorf("due: %q, want %q", got, due)
		}
	}
	down := settlement{what: isFailed, delay: time.Hour, err: "refused"}
	accepted := settlement{what: isDone, reason: reasonAccepted}
	take()
	settle("acme/a", down, "acme/b", "acme/c")
	settle("acme/b", down, "acme/c")
	settle("acme/c", settlement{what: isDone}, "acme/c") // nothing was posted, as of a watch that was removed
	must(w.redis.HIncrBy(ctx, boxes.key("troubled"), "docs", -time.Minute.Milliseconds()).Result())(t)
	settle("acme/c", accepted, "acme/a", "acme/b", "acme/c")
	settle("acme/a", accepted, "acme/b", "acme/c")
	settle("acme/b", down, "acme/c") // alone
	settle("acme/c", accepted, "acme/c")
	if sent, err := boxes.SendNow(ctx, "docs"); sent != 1 || err != nil {
		t.Fatalf("%d boxes sent, error %v", sent, err)
	}
	take()
	settle("acme/b", accepted, "acme/c")
}

// An app that accepts some notifications and refuses others keeps the delays of those, and its own.
func TestMixedAnswersHastenNothing(t *testing.T) {
	for name, failed := range map[string]settlement{
		"within a minute":             {what: isFailed, delay: time.Hour, err: "503"},
		"the app has named the delay": {what: isFailed, delay: time.Hour, reason: reasonAsked, err: "429"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ctx := t.Context()
			w.watch("docs", "http://127.0.0.1:1/", "acme/a", "acme/b", "acme/c")
			n := w.fed(synced(t, "1", "docs", "acme/a"), synced(t, "2", "docs", "acme/b"), synced(t, "3", "docs", "acme/c"))
			claims := w.claimDue(n)
			w.settle(n, claims[0], failed)
			boxes := Outboxes{Redis: w.redis, Namespace: namespace}
			if failed.reason == reasonAsked { // another one has failed a minute ago, without a delay
				w.settle(n, claims[1], settlement{what: isFailed, delay: 0, err: "503"})
				must(w.redis.HIncrBy(ctx, boxes.key("troubled"), "docs", -time.Minute.Milliseconds()).Result())(t)
			}
			w.settle(n, claims[2], settlement{what: isDone, reason: reasonAccepted})
			for _, c := range w.claimDue(n) {
				if c.repo == claims[0].repo {
					t.Errorf("%s is due", c.repo)
				}
			}
			if list := must(boxes.Boxes(ctx, "docs", 9))(t); list[0].Error != failed.err {
				t.Errorf("%+v", list)
			}
		})
	}
}
