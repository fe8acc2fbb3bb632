package handlers_test

import (
	"context"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// TestRefusedCredentialIsRecordedUntilASyncSucceeds revokes the token of one of two apps, then of both, and restores them.
func TestRefusedCredentialIsRecordedUntilASyncSucceeds(t *testing.T) {
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.git.AcceptTokens("acme/widgets", "one", "two")
	url := w.git.URL("acme/widgets")
	for _, name := range []string{"one", "two", "new"} {
		w.env["LOCKSTEP_CREDENTIAL_"+strings.ToUpper(name)+"_PASSWORD"] = name
		w.env["LOCKSTEP_CREDENTIAL_"+strings.ToUpper(name)+"_URLS"] = strings.TrimSuffix(url, "acme/widgets.git")
	}
	w.watchAs(watch.Watch{App: "docs", URL: url, Credential: "one"}, "")
	w.watchAs(watch.Watch{App: "scan", URL: url, Credential: "two"}, "")
	w.watchAs(watch.Watch{App: "late", URL: url, Credential: "new"}, "")
	sync := map[string]events.Change{
		"docs": {URL: url, App: "docs", Credential: "one"}, "scan": {URL: url, App: "scan", Credential: "two"},
		"late": {URL: url, App: "late", Credential: "new"},
		"pin":  {URL: url, App: "docs", Credential: "one", Ref: testenv.Must(events.ParseRef(commit))(t), After: commit},
	}
	poll := events.Change{Type: events.ChangeDue, Repo: w.repo()}
	entry := 0
	step := func(name string, change events.Change, want events.Class, denied string) {
		t.Helper()
		entry++
		_, err := w.handle(strings.Repeat("1", entry)+"-0", change)
		known, loadErr := w.states.Load(context.Background(), w.repo())
		must(t, loadErr)
		var all []string
		for _, one := range [][2]string{{"docs", "one"}, {"scan", "two"}, {"late", "new"}} {
			if known.Denied(one[0], one[1]) {
				all = append(all, one[0])
			}
		}
		if got := strings.Join(all, ", "); events.ClassOf(err) != want || got != denied {
			t.Errorf("%s: error %v, denied %q; want %q, %q", name, err, got, want, denied)
		}
	}
	none := events.ClassOf(nil)
	step("docs", sync["docs"], none, "")
	step("docs, by hash", sync["pin"], none, "")
	step("scan", sync["scan"], none, "")
	w.git.AcceptTokens("acme/widgets", "two")
	step("docs is revoked", sync["docs"], events.ClassAuth, "docs")
	step("a commit that it has", sync["pin"], events.ClassAuth, "docs")
	step("one that has received nothing", sync["late"], events.ClassAuth, "docs, late")
	step("the other", sync["scan"], none, "docs, late")
	step("a poll", poll, none, "docs, late")
	if got := requested(w.next); got != "pushed docs, pushed late" {
		t.Errorf("the poll requests %q, want a sync for the denied app, to see whether it still is", got)
	}
	w.git.AcceptTokens("acme/widgets", "other")
	step("a poll that nobody may make", poll, events.ClassAuth, "docs, scan, late")
	w.git.AcceptTokens("acme/widgets", "one")
	step("docs is accepted", sync["docs"], none, "scan, late")
	w.git.AcceptTokens("acme/widgets", "one", "two")
	step("scan is accepted", sync["scan"], none, "late")
	w.git.AcceptTokens("acme/widgets", "one")
	step("a poll by docs tries scan, too", poll, none, "scan, late")
	must(t, w.git.Delete("acme/widgets"))
	step("the repository is gone", poll, events.ClassNotFound, "docs, scan, late")
}
