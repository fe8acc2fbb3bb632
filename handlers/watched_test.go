package handlers_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// watch adds an app's watch of acme/widgets.
func (w *world) watch(app, ref string) watch.Watch {
	w.t.Helper()
	return w.watchAs(watch.Watch{App: app, URL: w.git.URL("acme/widgets")}, ref)
}

func (w *world) watchAs(of watch.Watch, ref string) watch.Watch {
	w.t.Helper()
	var err error
	if of.Ref, err = watch.ParseSelector(ref); err != nil {
		w.t.Fatal(err)
	}
	if of, err = watch.New(of); err != nil {
		w.t.Fatal(err)
	}
	testenv.Must(w.watches.Put(context.Background(), of))(w.t)
	return of
}

func (w *world) unwatch(of watch.Watch) {
	w.t.Helper()
	if n, err := w.watches.Remove(context.Background(), of.Key()); n != 1 || err != nil {
		w.t.Fatalf("unwatch: %d removed, error %v", n, err)
	}
}

// due polls acme/widgets and handles the requested changes. It returns these, and a removal for each ref that the poll has
// removed.
func (w *world) due(entry string) []events.Change {
	w.t.Helper()
	repo := testenv.Must(events.ParseRepoPath("acme/widgets"))(w.t)
	before, _, err := w.handlers.Volume.Published(repo)
	must(w.t, err)
	if r := w.mustHandle(entry, events.Change{Type: events.ChangeDue, Repo: repo}); r.Type != events.ResultPolled || r.Due != len(w.next) {
		w.t.Errorf("%+v, with %d changes", r, len(w.next))
	}
	after, _, err := w.handlers.Volume.Published(repo)
	must(w.t, err)
	changes := w.next
	for i, change := range changes {
		w.mustHandle(entry+string(rune('1'+i)), change)
	}
	for ref := range before.Commits {
		if after.Commits[ref] == "" {
			changes = append(changes, events.Change{Type: events.ChangeRemoved, Ref: ref})
		}
	}
	return changes
}

// missTwice polls once before the poll that finds ten minutes later that a ref is missing still.
func (w *world) missTwice(entry string) {
	w.t.Helper()
	w.due(entry)
	w.later += 10 * time.Minute
}

func requested(changes []events.Change) string {
	var texts []string
	for _, c := range changes {
		kind := strings.Split(string(c.Type), ".")[2]
		texts = append(texts, strings.TrimSpace(kind+" "+c.App+" "+c.Ref.String()))
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}

func TestPollCatchesMissedWebhooks(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	first := w.create(map[string]string{"a": "1"})
	w.watch("docs", "")
	w.watch("scan", "")
	w.watch("scan", "dev")
	for _, tag := range []string{"v1.9.0", "v1.10.0", "other"} {
		must(t, w.git.Tag(ctx, "acme/widgets", tag, first))
	}
	w.watch("release", "refs/tags/v*")
	for name, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"never synced", func() {}, "pushed docs, pushed release refs/tags/v1.10.0, pushed release refs/tags/v1.9.0, pushed scan"},
		{"nothing", func() {}, ""},
		{"a push", func() { w.push(map[string]string{"a": "2"}) }, "pushed docs, pushed scan"},
		{"a new branch", func() { must(t, w.git.SetRef(ctx, "acme/widgets", "refs/heads/dev", first)) }, "pushed scan refs/heads/dev"},
		{"a deleted branch", func() { must(t, w.git.DeleteRef(ctx, "acme/widgets", "refs/heads/dev")) }, ""},
		{"for ten minutes", func() { w.later += 10 * time.Minute }, "removed  refs/heads/dev"},
		{"a lost tree", func() { must(t, os.Remove(filepath.Join(w.root, "acme/widgets"))) }, "pushed docs, pushed scan"},
		{"a lost state", func() { w.redis.Del(ctx, events.DefaultNamespace.Repo(w.repo())) },
			"pushed docs, pushed release refs/tags/v1.10.0, pushed release refs/tags/v1.9.0, pushed scan"},
		{"another default branch", func() {
			must(t, w.git.SetRef(ctx, "acme/widgets", "refs/heads/next", first))
			must(t, w.git.SetHead("acme/widgets", "next"))
		}, "pushed docs, pushed scan"},
		{"nothing again", func() {}, ""},
	} {
		step.do()
		if got := requested(w.due(string(rune('a'+name)) + "-0")); got != step.want {
			t.Errorf("%s: requested %q, want %q", step.name, got, step.want)
		}
	}
	if _, err := os.Lstat(filepath.Join(w.root, "acme/widgets@dev")); !os.IsNotExist(err) {
		t.Errorf("the deleted branch is still published: %v", err)
	}
}

func (w *world) repo() events.RepoPath {
	repo := testenv.Must(events.ParseRepoPath("acme/widgets"))(w.t)
	return repo
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPollTriesEachCredential(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.git.AcceptTokens("acme/widgets", "good")
	prefix := strings.TrimSuffix(w.git.URL("acme/widgets"), "acme/widgets.git")
	for name, token := range map[string]string{"REVOKED": "bad", "CI": "good"} {
		w.env["LOCKSTEP_CREDENTIAL_"+name+"_PASSWORD"], w.env["LOCKSTEP_CREDENTIAL_"+name+"_URLS"] = token, prefix
	}
	url := w.git.URL("acme/widgets")
	w.watchAs(watch.Watch{App: "a", URL: url, Credential: "revoked"}, "")
	good := w.watchAs(watch.Watch{App: "b", URL: url, Credential: "ci"}, "")
	poll := events.Change{Type: events.ChangeDue, Repo: w.repo()}
	if _, err := w.handle("1-0", poll); err != nil || requested(w.next) != "pushed a, pushed b" {
		t.Errorf("requested %q, error %v; want both, each to prove its own credential", requested(w.next), err)
	}
	w.unwatch(good)
	if _, err := w.handle("2-0", poll); events.ClassOf(err) != events.ClassAuth {
		t.Errorf("with a revoked token alone: %v; want auth", err)
	}
}

func TestPollForOneAppConcernsItAlone(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	ctx := context.Background()
	for _, tag := range []string{"v1", "v2"} {
		must(t, w.git.Tag(ctx, "acme/widgets", tag, first))
	}
	w.watch("docs", "refs/tags/v1")
	w.due("a-0")
	must(t, w.git.DeleteRef(ctx, "acme/widgets", "refs/tags/v1"))
	w.missTwice("a1-0")
	w.watch("scan", "")
	w.watch("ci", "refs/tags/v*")
	poll := events.Change{Type: events.ChangeDue, Repo: w.repo(), App: "ci"}
	if r := w.mustHandle("b-0", poll); requested(w.next) != "pushed ci refs/tags/v2" || r.Due != 1 {
		t.Errorf("requested %q, %d due; want a sync for ci and nothing else", requested(w.next), r.Due)
	}
	poll.App = "gone"
	if r := w.mustHandle("c-0", poll); len(w.next) > 0 || r.Due != 0 {
		t.Errorf("requested %q for an app without a watch", requested(w.next))
	}
	if changes := w.due("d-0"); requested(changes) != "pushed ci refs/tags/v2, pushed scan, removed  refs/tags/v1" {
		t.Errorf("a poll for all apps requested %q", requested(changes))
	}
}

func TestPollKeepsRepositoryNotFound(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.watch("docs", "")
	w.due("a-0")
	must(t, w.git.Delete("acme/widgets"))
	_, err := w.handle("2-0", events.Change{Type: events.ChangeDue, Repo: w.repo()})
	if events.ClassOf(err) != events.ClassNotFound || !w.published() {
		t.Errorf("error %v, published %v; want it reported and kept", err, w.published())
	}
	if r := w.mustHandle("3-0", events.Change{Type: events.ChangeRemoved, URL: w.git.URL("acme/widgets")}); r.Type != events.ResultRemoved || w.published() {
		t.Errorf("result %+v, published %v; want it removed", r, w.published())
	}
}

func TestSyncForRemovedWatchIsRefused(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	docs := w.watch("docs", "")
	change, err := docs.Change("c1", "/test", events.Ref{}, "")
	must(t, err)
	w.mustHandle("1-0", change)
	w.unwatch(docs)
	w.mustHandle("2-0", events.Change{Type: events.ChangeRemoved, Repo: w.repo(), Force: true})
	_, err = w.handle("3-0", change) // later in the stream than the removal
	if events.ClassOf(err) != events.ClassBusy || events.DispositionOf(err) != events.Permanent || w.published() {
		t.Errorf("error %v, published %v; want it refused", err, w.published())
	}
}

func TestForcedRemovalKeepsWatchedRepository(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	docs := w.watch("docs", "")
	w.due("a-0")
	w.unwatch(docs)
	w.watch("docs", "")
	_, err := w.handle("2-0", events.Change{Type: events.ChangeRemoved, Repo: w.repo(), Force: true})
	if events.ClassOf(err) != events.ClassConflict || !strings.Contains(err.Error(), "docs") || !w.published() {
		t.Errorf("error %v, published %v; want it kept", err, w.published())
	}
}

func TestDeletedBranchIsUnpublished(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/dev", first))
	dev := testenv.Must(events.ParseRef("dev"))(t)
	url := w.git.URL("acme/widgets")
	w.mustHandle("1-0", events.Change{URL: url, App: "docs"})
	w.mustHandle("2-0", events.Change{URL: url, App: "docs", Ref: dev})
	removal := events.Change{Type: events.ChangeRemoved, URL: url, Ref: dev}
	if _, err := w.handle("3-0", removal); events.ClassOf(err) != events.ClassConflict {
		t.Errorf("the remote has the branch: %v; want it kept", err)
	}
	must(t, w.git.DeleteRef(context.Background(), "acme/widgets", "refs/heads/dev"))
	if r := w.mustHandle("4-0", removal); r.Type != events.ResultRemoved || r.Ref != dev {
		t.Errorf("result %+v, want the ref removed", r)
	}
	known := testenv.Must(w.states.Load(context.Background(), w.repo()))(t)
	if !w.published() || known.Head(dev) != "" || known.Given("docs", dev) != "" || len(known.Heads()) != 1 {
		t.Errorf("published %v, heads %v; want the default branch alone", w.published(), known.Heads())
	}
}

// TestPollForgetsAnInterruptedRemoval covers a worker that died between the removal of a clone and the settling, and a repetition that was
// refused because another branch is watched by then, which the remote may lack.
func TestPollForgetsAnInterruptedRemoval(t *testing.T) {
	for name, want := range map[string]string{"a branch": "pushed docs refs/heads/dev", "a branch that the remote lacks": ""} {
		t.Run(name, func(t *testing.T) {
			w, exists := newWorld(t), want != ""
			first := w.create(map[string]string{"a": "1"})
			if exists {
				must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/dev", first))
			}
			docs := w.watch("docs", "")
			w.due("a-0")
			w.unwatch(docs)
			removal := events.Change{Type: events.ChangeRemoved, Repo: w.repo(), Force: true}
			w.handleUnsettled("b-0", removal)
			w.watch("docs", "dev")
			if _, err := w.handle("b-0", removal); events.ClassOf(err) != events.ClassConflict {
				t.Errorf("the repeated removal: %v, want it refused", err)
			}
			if got := requested(w.due("c-0")); got != want {
				t.Errorf("requested %q, want %q", got, want)
			}
			known := testenv.Must(w.states.Load(context.Background(), w.repo()))(t)
			switch heads := known.Heads(); {
			case exists && (len(heads) != 1 || heads["refs/heads/dev"] != first || known.Given("docs", mainRef(t)) != ""):
				t.Errorf("heads %v, %s given to docs; want the watched branch alone", heads, known.Given("docs", mainRef(t)))
			case !exists && (len(known.CloneFields()) != 0 || !known.Synced().IsZero()):
				t.Errorf("the state still has %v", known.CloneFields())
			}
		})
	}
}

func mainRef(t *testing.T) events.Ref {
	t.Helper()
	ref := testenv.Must(events.ParseRef("main"))(t)
	return ref
}

func TestMoveKeepsWatchesAndState(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.watch("docs", "")
	w.due("a-0")
	fetches := w.git.Stats("acme/widgets").UploadPacks
	must(t, w.git.Rename("acme/widgets", "acme/gadgets"))
	gadgets := testenv.Must(events.ParseRepoPath("acme/gadgets"))(t)
	move := events.Change{Type: events.ChangeMoved, Repo: w.repo(), To: gadgets, URL: w.git.URL("acme/gadgets")}
	for range 2 { // the second time as if the first worker died before settling
		r := w.mustHandle("2-0", move)
		if r.Type != events.ResultMoved || !r.To.Equal(gadgets) || r.Path != "acme/gadgets" || r.Tree == "" {
			t.Errorf("result %+v", r)
		}
	}
	if got := w.git.Stats("acme/gadgets").UploadPacks + w.git.Stats("acme/widgets").UploadPacks; got != fetches {
		t.Errorf("%d more fetches, want none", got-fetches)
	}
	set, err := w.watches.Of(context.Background(), gadgets)
	if err != nil || len(set.Watches) != 1 || set.Watches[0].URL != w.git.URL("acme/gadgets") {
		t.Fatalf("watches %+v, error %v", set.Watches, err)
	}
	if r := w.mustHandle("3-0", events.Change{URL: w.git.URL("acme/gadgets"), App: "docs"}); r.Before != first || r.After != first {
		t.Errorf("docs received %+v, want nothing new", r)
	}
	if r := w.mustHandle("1-0", events.Change{URL: w.git.URL("acme/widgets"), App: "docs"}); r.Type != events.ResultRemoved {
		t.Errorf("a change older than the move: %+v", r)
	}
}

func TestMoveOfWatchesWithoutClone(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	testenv.Must(w.git.Create(context.Background(), "evil/widgets", map[string]string{"a": "evil"}))(t)
	w.watch("docs", "")
	evil, err := events.ParseRepoPath("evil/widgets")
	must(t, err)
	move := events.Change{Type: events.ChangeMoved, Repo: w.repo(), To: evil, URL: w.git.URL("evil/widgets")}
	if _, err := w.handle("1-0", move); events.ClassOf(err) != events.ClassConflict {
		t.Errorf("another repository: %v; want a conflict", err)
	}
	if set, err := w.watches.Of(context.Background(), w.repo()); err != nil || len(set.Watches) != 1 {
		t.Errorf("watches %+v, error %v; want them unchanged", set, err)
	}
	must(t, w.git.Rename("acme/widgets", "acme/gadgets"))
	gadgets, err := events.ParseRepoPath("acme/gadgets")
	must(t, err)
	move.To, move.URL = gadgets, strings.Replace(w.git.URL("acme/gadgets"), "127.0.0.1", "localhost", 1)
	if _, err := w.handle("2-0", move); events.ClassOf(err) != events.ClassConflict || events.DispositionOf(err) != events.Permanent {
		t.Errorf("moved to another host: %v; want a conflict", err)
	}
	move.URL = w.git.URL("acme/gadgets")
	w.mustHandle("2-0", move)
	if set, err := w.watches.Of(context.Background(), gadgets); err != nil || len(set.Watches) != 1 {
		t.Errorf("watches %+v, error %v; want them moved", set, err)
	}
}

func TestMoveSettledAfterRemoval(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.watch("docs", "")
	w.due("a-0")
	must(t, w.git.Rename("acme/widgets", "acme/gadgets"))
	gadgets := testenv.Must(events.ParseRepoPath("acme/gadgets"))(t)
	move := events.Change{Type: events.ChangeMoved, Repo: w.repo(), To: gadgets, URL: w.git.URL("acme/gadgets")}
	w.handleUnsettled("2-0", move) // its worker dies
	must(t, w.git.Delete("acme/gadgets"))
	w.mustHandle("3-0", events.Change{Type: events.ChangeRemoved, URL: w.git.URL("acme/gadgets")})
	w.handle("2-0", move)
	known := testenv.Must(w.states.Load(context.Background(), gadgets))(t)
	if !known.Synced().IsZero() || len(known.Heads()) != 0 {
		t.Errorf("synced %v, heads %v; want no clone", known.Synced(), known.Heads())
	}
}

// A poll that cannot see what is published forgets nothing: the tree of a ref is marked as damaged, or the volume is not mounted.
func TestPollForgetsNothingThatIsPublished(t *testing.T) {
	for name, hide := range map[string]func(w *world, tree string){
		"damaged": func(w *world, tree string) {
			git := filepath.Join(w.root, tree, ".git")
			must(w.t, os.Rename(filepath.Join(git, "lockstep-ref"), filepath.Join(git, "lockstep-damaged")))
		},
		"not mounted": func(w *world, _ string) {
			must(w.t, os.Rename(w.root, w.root+"-away"))
			must(w.t, os.Mkdir(w.root, 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			first := w.create(map[string]string{"a": "1"})
			w.tag(first, "v1")
			w.watch("docs", "")
			w.due("a-0")
			tag, err := events.ParseRef("refs/tags/v1")
			must(t, err)
			r := w.mustHandle("2-0", events.Change{URL: w.git.URL("acme/widgets"), Ref: tag, App: "ci"})
			hide(w, r.Tree)
			_, err = w.handle("3-0", events.Change{Type: events.ChangeDue, Repo: w.repo()})
			if hidden := name == "not mounted"; (err != nil) != hidden {
				t.Errorf("the poll returns %v", err)
			}
			known := testenv.Must(w.states.Load(t.Context(), w.repo()))(t)
			if known.Given("ci", tag) != first || known.Head(tag) != first {
				t.Error("the state has forgotten the tag")
			}
		})
	}
}

// TestPollTriesTheNextWatchIfOneIsWrong has a watch whose remote cannot be contacted as configured.
func TestPollTriesTheNextWatchIfOneIsWrong(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	ssh := strings.Replace(url, "http://", "ssh://git@", 1)
	w.credential("keyless", "password", "")
	w.env["LOCKSTEP_CREDENTIAL_KEYLESS_URLS"] = ssh
	w.watchAs(watch.Watch{App: "a", URL: ssh, Credential: "keyless"}, "")
	w.watchAs(watch.Watch{App: "b", URL: url}, "")
	poll := events.Change{Type: events.ChangeDue, Repo: w.repo()}
	if _, err := w.handle("1-0", poll); err != nil || requested(w.next) != "pushed a, pushed b" {
		t.Errorf("requested %q, error %v", requested(w.next), err)
	}
	poll.App = "a"
	if _, err := w.handle("2-0", poll); events.ClassOf(err) != events.ClassConfig {
		t.Errorf("with the wrong one alone: %v; want config", err)
	}
}

// TestAppsThatLeaveTakeTheirFieldsAlong has apps that watch for a while, each with its own credential. One of them
// also asks by hand, and one keeps another watch.
func TestAppsThatLeaveTakeTheirFieldsAlong(t *testing.T) {
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.tag(commit, "v1")
	w.latest = "5-0"
	url := w.git.URL("acme/widgets")
	w.watch("stays", "")
	w.due("10-0")
	fields := func() []string {
		all := w.redis.HGetAll(t.Context(), events.DefaultNamespace.Repo(w.repo())).Val()
		maps.DeleteFunc(all, func(name, _ string) bool { return strings.HasPrefix(name, "chain:") }) // one per ref
		return slices.Sorted(maps.Keys(all))
	}
	before := fields()
	var apps []watch.Watch
	for i := range 10 {
		name := fmt.Sprintf("app%d", i)
		w.credential(name, "", "acme")
		apps = append(apps, w.watchAs(watch.Watch{App: name, URL: url, Credential: name}, ""))
	}
	w.due("20-0")
	w.mustHandle("30-0", events.Change{URL: url, App: "app3", Credential: "app3", Watched: true, After: commit})
	w.deny("app4", "app4")
	if n := len(fields()); n < len(before)+20 {
		t.Fatalf("%d fields, %d before", n, len(before))
	}
	for _, of := range apps {
		w.unwatch(of)
	}
	w.due("40-0")
	if after := fields(); !slices.Equal(after, before) {
		t.Errorf("%q, want %q as before", after, before)
	}

	byHand := w.watchAs(watch.Watch{App: "hand", URL: url}, "")
	partly := w.watchAs(watch.Watch{App: "partly", URL: url}, "")
	w.watchAs(watch.Watch{App: "partly", URL: url}, "refs/tags/v1")
	w.due("50-0")
	w.mustHandle("60-0", events.Change{URL: url, App: "hand"})
	w.unwatch(byHand)
	w.unwatch(partly)
	w.due("70-0")
	known := testenv.Must(w.states.Load(t.Context(), w.repo()))(t)
	if !known.HasGiven("hand") || !known.HasGiven("partly") {
		t.Errorf("forgotten: %q", fields())
	}
}
