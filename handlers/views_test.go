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

	"lockstep/events"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/ext/views"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/view"
	"lockstep/internal/watch"
)

func viewSet(t *testing.T, views map[string][]string) *view.Set {
	t.Helper()
	set := testenv.Must(view.New(views))(t)
	return set
}

// watchViews adds a watch with views.
func (w *world) watchViews(app, ref string, paths map[string][]string) watch.Watch {
	w.t.Helper()
	return w.watchAs(watch.Watch{App: app, URL: w.git.URL("acme/widgets"), Options: watch.With(views.Options{Views: viewSet(w.t, paths)})}, ref)
}

// told describes the results of views of the last outcome.
func (w *world) told() string {
	var texts []string
	for _, r := range w.more {
		var files []string
		for _, f := range r.Files {
			files = append(files, string(f.Status)+" "+f.Path)
		}
		text := r.View + ": " + strings.Join(files, ", ")
		if r.Full {
			text += " (full)"
		}
		if r.Before == "" {
			text += " (first)"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}

// polled polls and handles the requested changes, and describes the results of views.
func (w *world) polled(entry string) string {
	w.t.Helper()
	w.mustHandle(entry, events.Change{Type: events.ChangeDue, Repo: w.repo()})
	var told []string
	for i, change := range w.next {
		w.mustHandle(entry+string(rune('1'+i)), change)
		told = append(told, w.told())
	}
	return strings.Join(told, " | ")
}

func TestViewsHaveResultsOfTheirOwn(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"api/main.go": "1", "web/index.html": "1", "lib/a.go": "1", "README": "1"})
	argo := w.watchViews("argo", "", map[string][]string{"api": {"api", "lib"}, "web": {"web"}, "code": {"**/*.go"}, "none": {"nothing"}})
	w.watch("docs", "")
	if got := w.polled("a-0"); got != "api: added api/main.go, added lib/a.go (first); code: added api/main.go, added lib/a.go (first); none:  (first); web: added web/index.html (first) | " {
		t.Errorf("first: %s", got)
	}
	sync := func(entry string) events.Result {
		t.Helper()
		change := testenv.Must(argo.Change("c", "/test", events.Ref{}, ""))(t)
		return w.mustHandle(entry, change)
	}
	second := w.push(map[string]string{"web/index.html": "2", "README": "2"})
	r := sync("b-0")
	if got := w.told(); got != "web: modified web/index.html" || r.Views == nil || *r.Views != (events.ViewCounts{Changed: 1, Unchanged: 3}) || len(r.Files) != 2 {
		t.Errorf("a push to web: %s, %+v", got, r)
	}
	if v := w.more[0]; v.Type != events.ResultView || v.Before != first || v.After != second || v.Tree != r.Tree || v.Path != r.Path || v.App != "argo" ||
		v.ID != r.ID+"/web" || v.Views != nil || v.Deliveries != nil {
		t.Errorf("result of a view: %+v, of the sync: %+v", v, r)
	}
	w.push(map[string]string{"README": "3"})
	if r = sync("c-0"); w.told() != "" || *r.Views != (events.ViewCounts{Unchanged: 4}) {
		t.Errorf("a push to no view: %s, %+v", w.told(), r.Views)
	}
	for _, edit := range []struct {
		gitserver.Edit
		want string
	}{
		{gitserver.Edit{Delete: []string{"lib/a.go"}, Write: map[string]string{"other/a.go": "1"}}, "api: deleted lib/a.go; code: renamed other/a.go"},
		{gitserver.Edit{Delete: []string{"web"}, Write: map[string]string{"web": "a file"}}, "web: added web, deleted web/index.html"},
		{gitserver.Edit{Write: map[string]string{"nothing/x": "1"}}, "none: added nothing/x"},
		{gitserver.Edit{Exec: map[string]string{"api/main.go": "1"}}, "api: mode api/main.go; code: mode api/main.go"},
		{gitserver.Edit{Delete: []string{"nothing"}}, "none: deleted nothing/x"},
		{gitserver.Edit{Parent: second}, "api: added lib/a.go, mode api/main.go; code: mode api/main.go, renamed lib/a.go; web: added web/index.html, deleted web"},
	} {
		testenv.Must(w.git.Commit(context.Background(), "acme/widgets", gitserver.Main, edit.Edit))(t)
		sync("d-0")
		if got := sorted(w.told()); got != sorted(edit.want) {
			t.Errorf("%+v: %s, want %s", edit.Edit, got, edit.want)
		}
	}
	w.push(map[string]string{"web/index.html": "9"})
	w.push(map[string]string{"web/index.html": "2"}) // a net change of nothing
	if r = sync("e-0"); w.told() != "" || r.Views.Unchanged != 4 {
		t.Errorf("pushed there and back: %s", w.told())
	}
	w.mustHandle("f-0", events.Change{URL: w.git.URL("acme/widgets"), App: "docs"})
	if r := w.mustHandle("f-1", events.Change{URL: w.git.URL("acme/widgets")}); r.Views != nil || len(w.more) > 0 {
		t.Errorf("an app without views received %+v", r)
	}
}

// A change that a sync covers counts the views too: none has changed since.
func TestCoveredChangesCountViews(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "b": "1"})
	w.watchViews("argo", "", map[string][]string{"a": {"a"}, "b": {"b"}})
	w.latest = "8-0"
	change := events.Change{URL: w.git.URL("acme/widgets"), App: "argo"}
	outcome := testenv.Must(w.outcome("1-0", change))(t)
	covered, ok := outcome.Covers(context.Background(), w.job("2-0", change))
	if !ok || covered.Result.Views == nil || *covered.Result.Views != (events.ViewCounts{Unchanged: 2}) || len(covered.More) > 0 {
		t.Errorf("covered %v: %+v", ok, covered.Result.Views)
	}
}

// A view lists only those missing submodules that are in it.
func TestViewsListTheirMissingSubmodules(t *testing.T) {
	w := newWorld(t)
	w.withSubmodule("../nothing.git")
	set := viewSet(t, map[string][]string{"all": {"**"}, "file": {"a"}, "within": {"sub/l"}, "sub": {"s*"}})
	w.watchAs(watch.Watch{App: "argo", URL: w.git.URL("acme/widgets"), Options: watch.With(views.Options{Views: set}, submodules.Options{Mode: events.SubmodulesBestEffort})}, "")
	w.polled("a-0")
	got := map[string]int{}
	for _, r := range w.more {
		got[r.View] = len(r.Missing)
	}
	if want := map[string]int{"all": 1, "file": 0, "within": 0, "sub": 1}; !maps.Equal(got, want) {
		t.Errorf("missing submodules by view: %v, want %v", got, want)
	}
}

// sorted sorts the files in a text of told.
func sorted(told string) string {
	views := strings.Split(told, "; ")
	for i, one := range views {
		name, files, _ := strings.Cut(one, ": ")
		list := strings.Split(files, ", ")
		slices.Sort(list)
		views[i] = name + ": " + strings.Join(list, ", ")
	}
	return strings.Join(views, "; ")
}

// Adding or changing a view wakes that view only.
func TestChangedViewsAreCompared(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"api/a": "1", "web/a": "1", "web/b": "1"})
	for _, step := range []struct {
		views map[string][]string
		want  string
	}{
		{map[string][]string{"api": {"api"}}, "api: added api/a (first)"},
		{map[string][]string{"api": {"api"}}, ""},
		{map[string][]string{"api": {"api"}, "web": {"web/a"}}, "web: added web/a (first)"},
		{map[string][]string{"api": {"api"}, "web": {"web"}}, "web: added web/a, added web/b (full)"},
		{map[string][]string{"api": {"api"}, "web": {"web/*"}}, ""}, // other paths, the same files
		{map[string][]string{"web": {"web/*"}}, ""},
		{map[string][]string{"api": {"api"}, "web": {"web/*"}}, "api: added api/a (first)"}, // it was forgotten
		{nil, ""},
	} {
		w.watchViews("argo", "", step.views)
		if got := w.polled("a-0"); got != step.want {
			t.Errorf("%v: %q, want %q", step.views, got, step.want)
		}
		if w.mustHandle("b-0", events.Change{Type: events.ChangeDue, Repo: w.repo()}); len(w.next) != 0 {
			t.Errorf("%v: the next poll requested %+v", step.views, w.next)
		}
	}
}

// The most specific watch of an app decides, as for notifications; apps do not share what they have received.
func TestViewsArePerAppAndRef(t *testing.T) {
	w := newWorld(t)
	commit := w.create(map[string]string{"a/a": "1", "b/b": "1"})
	w.watchViews("argo", "", map[string][]string{"default": {"a"}})
	w.watchViews("argo", "refs/heads/*", map[string][]string{"pattern": {"b"}})
	w.watchViews("flux", "main", map[string][]string{"default": {"a"}})
	must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/dev", commit))
	if got := w.polled("a-0"); got != "default: added a/a (first) | pattern: added b/b (first) |  | default: added a/a (first)" {
		t.Error(got)
	}
}

func TestRemovedRefForgetsItsViews(t *testing.T) {
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.watchViews("argo", "refs/heads/*", map[string][]string{"v": {"a"}})
	ctx := context.Background()
	for round := range 2 {
		must(t, w.git.SetRef(ctx, "acme/widgets", "refs/heads/dev", commit))
		if got := w.polled(fmt.Sprintf("a%d-0", round)); !strings.Contains(got, "v: added a (first)") {
			t.Errorf("round %d: %q", round, got)
		}
		must(t, w.git.DeleteRef(ctx, "acme/widgets", "refs/heads/dev"))
		w.missTwice(fmt.Sprintf("b%d-0", round))
		w.polled(fmt.Sprintf("c%d-0", round))
		fields := testenv.Must(w.redis.HKeys(ctx, events.DefaultNamespace.Views(w.repo())).Result())(t)
		slices.Sort(fields)
		if want := []string{"refs/heads/main:argo", "refs/heads/main:argo:v"}; !slices.Equal(fields, want) {
			t.Errorf("round %d: kept %q, want %q", round, fields, want)
		}
	}
	must(t, w.git.Delete("acme/widgets"))
	w.mustHandle("c-0", events.Change{Type: events.ChangeRemoved, URL: w.git.URL("acme/widgets")})
	if n := w.redis.Exists(ctx, events.DefaultNamespace.Views(w.repo())).Val(); n != 0 {
		t.Error("the state of views outlives the repository")
	}
}

func TestViewsMoveWithTheirRepository(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "b": "1"})
	w.watchViews("argo", "", map[string][]string{"a": {"a"}, "b": {"b"}})
	w.polled("a-0")
	must(t, w.git.Rename("acme/widgets", "acme/gadgets"))
	gadgets := path(t, "acme/gadgets")
	w.mustHandle("b-0", events.Change{Type: events.ChangeMoved, Repo: w.repo(), To: gadgets, URL: w.git.URL("acme/gadgets")})
	_, err := w.git.Commit(context.Background(), "acme/gadgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"b": "2"}})
	must(t, err)
	w.mustHandle("c-0", events.Change{URL: w.git.URL("acme/gadgets"), App: "argo"})
	if got := w.told(); got != "b: modified b" {
		t.Errorf("after the move: %s", got)
	}
	if n := w.redis.Exists(context.Background(), events.DefaultNamespace.Views(w.repo())).Val(); n != 0 {
		t.Error("the old path still has state of views")
	}
}

func (w *world) viewFields() []string {
	w.t.Helper()
	fields := testenv.Must(w.redis.HKeys(context.Background(), events.DefaultNamespace.Views(w.repo())).Result())(w.t)
	slices.Sort(fields)
	return fields
}

// The state of views goes with that of what the app has received.
func TestViewsNobodyHasAreForgotten(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	commit := w.create(map[string]string{"a": "1"})
	argo := w.watchViews("argo", "", map[string][]string{"v": {"a"}})
	w.watchViews("flux", "", map[string][]string{"v": {"a"}})
	w.polled("a-0")
	testenv.Must(w.watches.Remove(ctx, argo.Key()))(t)
	if told := w.polled("b-0"); told != "" {
		t.Errorf("the removal of a watch told %q", told)
	}
	if got, want := w.viewFields(), []string{"refs/heads/main:flux", "refs/heads/main:flux:v"}; !slices.Equal(got, want) {
		t.Errorf("without argo's watch: kept %q, want %q", got, want)
	}
	must(t, w.git.SetRef(ctx, "acme/widgets", "refs/heads/trunk", commit))
	must(t, w.git.SetHead("acme/widgets", "trunk"))
	w.polled("c-0")
	if got, want := w.viewFields(), []string{"refs/heads/trunk:flux", "refs/heads/trunk:flux:v"}; !slices.Equal(got, want) {
		t.Errorf("after the default branch has changed: kept %q, want %q", got, want)
	}
	w.wipe()
	for _, ref := range []string{"refs/heads/trunk", "refs/heads/main"} {
		must(t, w.git.DeleteRef(ctx, "acme/widgets", ref))
	}
	w.polled("d-0")
	if got := w.viewFields(); len(got) != 0 {
		t.Errorf("without a clone and anything to sync: kept %q", got)
	}
}

// removeObject removes an object of the published commit from a store.
func (w *world) removeObject(store, path string) {
	w.t.Helper()
	dir := filepath.Join(w.root, ".lockstep/repos/acme/widgets/stores", store)
	git := func(stdin string, args ...string) string {
		w.t.Helper()
		out := testenv.Must(gitserver.Git(context.Background(), dir, stdin, args...))(w.t)
		return out
	}
	packs := testenv.Must(filepath.Glob(filepath.Join(dir, "objects/pack/*.pack")))(w.t)
	for _, pack := range packs {
		content := testenv.Must(os.ReadFile(pack))(w.t)
		must(w.t, os.Remove(pack))
		must(w.t, os.Remove(strings.TrimSuffix(pack, "pack")+"idx"))
		git(string(content), "unpack-objects", "-q")
	}
	id := git("", "rev-parse", w.git.Head("acme/widgets", "refs/heads/main")+":"+path)
	must(w.t, os.Remove(filepath.Join(dir, "objects", id[:2], id[2:])))
}

// Everything is fetched again if objects are gone that only the comparison of views needs, or that of files.
func TestViewsInADamagedStore(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a/b/c": "1", "d": "1"})
	argo := events.Change{URL: w.git.URL("acme/widgets"), App: "argo"}
	w.mustHandle("1-0", argo)
	w.removeObject("1", "a")
	w.watchViews("argo", "", map[string][]string{"v": {"a/b"}})
	w.mustHandle("2-0", argo)
	if got := w.told(); got != "v: added a/b/c (first)" || w.more[0].Views != nil {
		t.Errorf("%s: %+v", got, w.more)
	}
	w.removeObject("2", "a/b")
	if r := w.mustHandle("3-0", events.Change{URL: argo.URL, App: "docs"}); len(r.Files) != 2 {
		t.Errorf("the first result of another app: %+v", r)
	}
	w.push(map[string]string{"a/b/c": "2"})
	if w.mustHandle("4-0", argo); w.told() != "v: modified a/b/c" {
		t.Error(w.told())
	}
}

// If the commit that an app last received is gone, views are compared by their subtrees.
func TestViewsAreComparedWithoutTheLastCommit(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "b": "1"})
	w.watchViews("argo", "", map[string][]string{"a": {"a"}, "b": {"b"}})
	w.polled("a-0")
	w.wipe()
	w.push(map[string]string{"b": "2"})
	w.mustHandle("b-0", events.Change{URL: w.git.URL("acme/widgets"), App: "argo"})
	if got := w.told(); got != "b: added b (full)" {
		t.Error(got)
	}
}
