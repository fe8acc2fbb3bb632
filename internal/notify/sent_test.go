package notify

import (
	"testing"

	"lockstep/events"
)

func TestAllSentOnceReadAndPosted(t *testing.T) {
	w, apps := newApp(t)
	w.watch("docs", apps.URL+"/docs", "acme/moved")
	box := Outboxes{Redis: w.redis, Namespace: namespace}
	repo := must(events.ParseRepoPath("acme/moved"))(t)
	allSent := func(upto string) bool { return must(box.AllSent(t.Context(), repo, upto))(t) }
	if !allSent("1-0") {
		t.Error("without a notifier something is left to post")
	}
	n := w.fed(synced(t, "1", "docs", "acme/moved"))
	if allSent("0-1") || allSent("") {
		t.Error("nothing is left to post with an item in the outbox")
	}
	w.settle(n, w.claimOne(n), settlement{what: isDone})
	if !allSent("0-1") {
		t.Error("something is left to post with an empty outbox")
	}
	if allSent("99999999999999-0") {
		t.Error("nothing is left to post before the notifiers have read the results")
	}
}
