package handlers_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/ext/lfs"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// TestRefusedCredentialIsRecordedUntilASyncSucceeds revokes the token of one of two apps, then of both, and restores them. Between two steps
// are ten minutes, so the second refusal in a row is confirmed.
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
		w.later += 10 * time.Minute
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
	step("docs is revoked", sync["docs"], events.ClassAuth, "")
	step("a commit that it has", sync["pin"], events.ClassAuth, "docs")
	step("one that has received nothing", sync["late"], events.ClassAuth, "docs, late")
	step("the other", sync["scan"], none, "docs, late")
	step("a poll", poll, none, "docs, late")
	if got := requested(w.next); got != "pushed docs, pushed late" {
		t.Errorf("the poll requests %q, want a sync for the denied app, to see whether it still is", got)
	}
	w.git.AcceptTokens("acme/widgets", "other")
	step("a poll that nobody may make", poll, events.ClassAuth, "docs, late")
	step("again", poll, events.ClassAuth, "docs, scan, late")
	w.git.AcceptTokens("acme/widgets", "one")
	step("docs is accepted", sync["docs"], none, "scan, late")
	w.git.AcceptTokens("acme/widgets", "one", "two")
	step("scan is accepted", sync["scan"], none, "late")
	w.git.AcceptTokens("acme/widgets", "one")
	step("a poll by docs tries scan, too", poll, none, "late")
	if got := requested(w.next); got != "pushed late, pushed scan" {
		t.Errorf("the poll requests %q, want a sync for the refused app, which confirms it", got)
	}
	step("scan is still refused", sync["scan"], events.ClassAuth, "scan, late")
	must(t, w.git.Delete("acme/widgets"))
	step("the repository is gone", poll, events.ClassNotFound, "scan, late")
	step("it stays so", poll, events.ClassNotFound, "docs, scan, late")
}

// TestRefusalOfAnLFSServerTakesNoAccess has an LFS server refuse the token: whoever may push can choose such a server.
func TestRefusalOfAnLFSServerTakesNoAccess(t *testing.T) {
	w := newWorld(t)
	url := w.git.URL("acme/widgets")
	issued := w.githubApp(url, "one", "two")
	server := w.git.LFS("acme/widgets")
	w.create(map[string]string{".gitattributes": "*.bin filter=lfs\n", "a.bin": server.Put("content")})
	server.Set(gitserver.LFSHooks{Batch: func(res http.ResponseWriter, _ *http.Request) bool {
		res.WriteHeader(http.StatusUnauthorized)
		return true
	}})
	w.watchAs(watch.Watch{App: "docs", URL: url, Credential: "app", Options: watch.With(lfs.Options{Mode: lfs.Fetch})}, "")
	for attempt := range 2 {
		_, err := w.handle("1-0", events.Change{URL: url, App: "docs", Credential: "app", Watched: true})
		known := testenv.Must(w.states.Load(context.Background(), w.repo()))(t)
		isRetryable := events.DispositionOf(err) == events.Retryable && events.ClassOf(err) == events.ClassAuth
		if !isRetryable || events.ScopeOf(err) != events.ScopeChange || known.Denied("docs", "app") {
			t.Errorf("%v, scope %q, denied: %v", err, events.ScopeOf(err), known.Denied("docs", "app"))
		}
		if int(issued.Load()) != attempt+1 {
			t.Errorf("%d tokens after attempt %d", issued.Load(), attempt+1)
		}
	}
}

// TestRefusalsThatNoPollCanClear has them end when another credential works, or when nothing depends on them.
func TestRefusalsThatNoPollCanClear(t *testing.T) {
	const docs, publisher = "docs/one", "/wrong"
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.credential("one", "", "acme")
	w.credential("right", "", "acme")
	poll := events.Change{Type: events.ChangeDue, Repo: w.repo()}
	denied := func(step string, want ...string) {
		t.Helper()
		known := testenv.Must(w.states.Load(context.Background(), w.repo()))(t)
		var got []string
		for _, one := range []string{docs, "late/one", publisher} {
			if app, credential, _ := strings.Cut(one, "/"); known.Denied(app, credential) {
				got = append(got, one)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: denied %q, want %q", step, got, want)
		}
	}
	w.watchAs(watch.Watch{App: "scan", URL: url}, "")
	of := w.watchAs(watch.Watch{App: "docs", URL: url, Credential: "one"}, "")
	w.due("1-0")
	w.deny("docs", "one")
	w.deny("", "wrong")
	w.mustHandle("2-0", events.Change{URL: url, Credential: "right"})
	denied("a publication works", docs)
	w.deny("late", "one")
	w.deny("", "wrong")
	w.unwatch(of)
	w.mustHandle("3-0", poll)
	denied("a poll, after docs has removed its watch")
	w.watchAs(watch.Watch{App: "docs", URL: url, Credential: "right"}, "")
	w.mustHandle("4-0", events.Change{URL: url, App: "docs", Credential: "right", Watched: true})
	denied("docs has another credential")
	w.watchAs(watch.Watch{App: "late", URL: url, Credential: "one"}, "gone")
	w.deny("late", "one")
	w.mustHandle("5-0", poll)
	denied("a poll, with nothing to sync")
}

// TestRefusedPollIsTriedAgain has the only credential of a repository be refused, until its file is replaced.
func TestRefusedPollIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.git.AcceptTokens("acme/widgets", "old")
	w.credential("one", "old", "acme")
	url := w.git.URL("acme/widgets")
	w.watchAs(watch.Watch{App: "docs", URL: url, Credential: "one"}, "")
	sync := events.Change{URL: url, App: "docs", Credential: "one", Watched: true}
	w.mustHandle("1-0", sync)
	w.git.AcceptTokens("acme/widgets", "new")
	poll := events.Change{Type: events.ChangeDue, Repo: w.repo(), OnBusy: events.BusySkip}
	handle := func(after time.Duration) (asked int, err error) {
		w.later += after
		before := len(w.git.TokensSeen("acme/widgets"))
		_, err = w.handle("2-0", poll)
		return len(w.git.TokensSeen("acme/widgets")) - before, err
	}
	if asked, err := handle(0); asked == 0 || events.DispositionOf(err) != events.Contention || events.RetryAfter(err) != 10*time.Second {
		t.Errorf("%d requests, %v after %v; want it to be tried again", asked, err, events.RetryAfter(err))
	}
	if asked, err := handle(time.Second); asked != 0 || events.DispositionOf(err) != events.Permanent || events.ScopeOf(err) != events.ScopeNone {
		t.Errorf("%d requests, %v; want another poll skipped meanwhile", asked, err)
	}
	w.credential("one", "new", "acme")
	if asked, err := handle(10 * time.Second); asked == 0 || err != nil || requested(w.next) != "pushed docs" {
		t.Errorf("%d requests, %v, then %s; want a sync with the new token", asked, err, requested(w.next))
	}
	w.mustHandle("3-0", sync)
	if known := testenv.Must(w.states.Load(context.Background(), w.repo()))(t); known.IsRefused("docs", "one") {
		t.Error("the refusal is still recorded")
	}
}
