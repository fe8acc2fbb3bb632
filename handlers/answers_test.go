package handlers_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
)

func TestDeletedRefAnnouncesNoCommit(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.latest = "2-0"
	w.mustHandle("1-0", events.Change{URL: url})
	gone := events.Change{URL: url, Ref: mustRef("gone"), After: strings.Repeat("0", 40)}
	if _, err := w.handle("2-0", gone); events.ClassOf(err) != events.ClassNoRef {
		t.Errorf("%v; want no_ref", err)
	}
}

func TestReusedAnswerDoesNotReplaceNewerOne(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.latest = "5-0"
	w.mustHandle("5-0", events.Change{URL: url})
	w.latest = "9-0"
	w.mustHandle("9-0", events.Change{URL: url, Ref: mustRef("main")})
	w.mustHandle("4-0", events.Change{URL: url})
	if n := w.asked(func() { w.mustHandle("8-0", events.Change{URL: url, Ref: mustRef("main")}) }); n != 0 {
		t.Errorf("the remote was asked %d times, want 0", n)
	}
}

func TestAnswerIsPerRemote(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	other := strings.Replace(url, "acme", "%61cme", 1) // the same remote, spelled differently
	w.env["LOCKSTEP_CREDENTIAL_X_PASSWORD"], w.env["LOCKSTEP_CREDENTIAL_X_URLS"] = "x", strings.TrimSuffix(url, "acme/widgets")
	w.latest = "5-0"
	w.mustHandle("1-0", events.Change{URL: url, Credential: "x"})
	w.mustHandle("2-0", events.Change{URL: other})
	if n := w.asked(func() { w.mustHandle("3-0", events.Change{URL: other, Credential: "x"}) }); n != 1 {
		t.Errorf("asked %d times by a URL with which that credential was never proved; want 1", n)
	}
}

func TestChangeOlderThanRemovalKeepsNewClone(t *testing.T) {
	w := newWorld(t)
	head := w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.latest = "6-0"
	w.mustHandle("5-0", events.Change{Type: events.ChangeRemoved, URL: url, Force: true})
	w.mustHandle("6-0", events.Change{URL: url, App: "docs"})
	if r := w.mustHandle("4-0", events.Change{URL: url, App: "docs"}); r.Type != events.ResultSynced || r.After != head || !w.published() {
		t.Errorf("result %+v, published %v; want the new clone kept", r, w.published())
	}
}

func TestResultNamesPublishedRefWhenAnswerIsInsufficient(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.latest = "9-0"
	w.mustHandle("1-0", events.Change{URL: url, App: "docs"})

	must(t, w.git.SetRef(ctx, "acme/widgets", "refs/heads/trunk", first))
	head, err := w.git.Commit(ctx, "acme/widgets", "trunk", gitserver.Edit{Write: map[string]string{"b": "2"}})
	if err != nil {
		t.Fatal(err)
	}
	must(t, w.git.SetHead("acme/widgets", "trunk"))
	objects, err := filepath.Glob(filepath.Join(w.root, ".lockstep/repos/acme/widgets/stores/*/objects/*/*"))
	if err != nil || len(objects) == 0 {
		t.Fatal(objects, err)
	}
	for _, object := range objects {
		must(t, os.Remove(object))
	}
	r := w.mustHandle("2-0", events.Change{URL: url, App: "search"}) // has an answer, but the files cannot be listed
	if r.Ref != mustRef("trunk") || r.After != head || r.Before != "" || len(r.Files) != 2 {
		t.Errorf("result %+v; want trunk at %s", r, head)
	}
}
