package notify

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"lockstep/events"
)

func TestNotificationsOfAMovedRepositoryWaitForThoseOfTheOtherCell(t *testing.T) {
	w, apps := newApp(t)
	w.watch("docs", apps.URL+"/docs", "acme/moved", "acme/other")
	follows := events.Follows{Cell: "eu-1", Stream: "lockstep:{eu-1}:results", Entry: "7-0"}
	var sent atomic.Bool
	asked := make(chan events.Follows, 100)
	w.run(func(c *Config) {
		c.Earlier = func(_ context.Context, f events.Follows, repo events.RepoPath, app string) (bool, error) {
			if repo.String() != "acme/moved" || app != "docs" {
				t.Errorf("asked for %s of %s", app, repo)
			}
			select {
			case asked <- f:
			default:
			}
			return sent.Load(), nil
		}
	})
	moved := synced(t, "1", "docs", "acme/moved")
	moved.Follows = &follows
	w.publish(moved, synced(t, "2", "docs", "acme/other"))
	if got := <-asked; got != follows {
		t.Errorf("asked about %v, want %v", got, follows)
	}
	if posts := apps.await(atLeast(1)); len(posts) != 1 || posts[0].result.ID != "2" {
		t.Fatalf("posted %v while the other cell had notifications, want that of the other repository", posts)
	}
	sent.Store(true)
	posts := apps.await(atLeast(2))
	if !slices.ContainsFunc(posts, func(p post) bool { return p.result.ID == "1" && p.result.Follows != nil }) {
		t.Errorf("posted %v, want that of the moved repository, too", posts)
	}
}

func TestAllSentOnceReadAndPosted(t *testing.T) {
	w, apps := newApp(t)
	w.watch("docs", apps.URL+"/docs", "acme/moved")
	box := Outboxes{Redis: w.redis, Namespace: namespace}
	repo := must(events.ParseRepoPath("acme/moved"))(t)
	allSent := func(upto string) bool { return must(box.AllSent(t.Context(), repo, []string{"docs"}, upto))(t) }
	if !allSent("1-0") {
		t.Error("without a notifier something is left to post")
	}
	n := w.fed(synced(t, "1", "docs", "acme/moved"))
	if allSent("0-1") {
		t.Error("nothing is left to post with an item in the outbox")
	}
	c := w.claimOne(n)
	if err := n.outbox.settle(t.Context(), c, settlement{what: isDone}); err != nil {
		t.Fatal(err)
	}
	if !allSent("0-1") {
		t.Error("something is left to post with an empty outbox")
	}
	if allSent("99999999999999-0") {
		t.Error("nothing is left to post before the notifiers have read the results")
	}
}
