package handlers_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// branch sets branches of acme/widgets to a commit.
func (w *world) branch(commit string, names ...string) {
	w.t.Helper()
	for _, name := range names {
		must(w.t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/"+name, commit))
	}
}

// limit adds a watch with max-refs.
func (w *world) limit(app, ref string, maxRefs int) watch.Watch {
	w.t.Helper()
	return w.watchAs(watch.Watch{App: app, URL: w.git.URL("acme/widgets"), MaxRefs: maxRefs}, ref)
}

// hook handles the change that a webhook for a ref of a watch leads to.
func (w *world) hook(entry string, of watch.Watch, ref string) events.Result {
	w.t.Helper()
	change := testenv.Must(of.Change("hook", "/hooks/github", mustRef(ref), ""))(w.t)
	return w.mustHandle(entry, change)
}

// settle polls until nothing is requested any more, and returns what was, in order.
func (w *world) settle(entry string) (all []string) {
	w.t.Helper()
	for n := range 5 {
		got := requested(w.due(fmt.Sprintf("%s%d-0", entry, n)))
		if got == "" {
			return all
		}
		all = append(all, got)
	}
	w.t.Fatalf("the polls do not end: %q", all)
	return nil
}

// names returns the published refs, separated by spaces and without "refs/heads/" and "refs/tags/".
func (w *world) names() string {
	w.t.Helper()
	published, _, err := w.handlers.Volume.Published(w.repo())
	must(w.t, err)
	var names []string
	for ref := range maps.Keys(published.Commits) {
		names = append(names, strings.TrimPrefix(strings.TrimPrefix(ref.String(), "refs/heads/"), "refs/tags/"))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func (w *world) leftOut() []state.LeftOut {
	w.t.Helper()
	known := testenv.Must(w.states.Load(context.Background(), w.repo()))(w.t)
	return known.LeftOut()
}

// TestTagBeyondLimitIsRefused handles a webhook for a tag that the next poll would remove.
func TestTagBeyondLimitIsRefused(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	release := w.limit("release", "refs/tags/v*", 2)
	w.tag(first, "v1.9", "v1.10", "v1.11")
	if got := w.settle("a"); len(got) != 1 || w.names() != "v1.10 v1.11" {
		t.Errorf("polls requested %q, published %q", got, w.names())
	}
	w.tag(first, "v1.2")
	change := testenv.Must(release.Change("c1", "/hooks/github", mustRef("refs/tags/v1.2"), first))(t)
	if _, err := w.handle("b-0", change); events.ClassOf(err) != events.ClassBusy || !strings.Contains(err.Error(), "max-refs") {
		t.Errorf("error %v, want class unwatched", err)
	}
	if got := w.settle("c"); len(got) != 0 || w.leftOut()[0].Count != 2 {
		t.Errorf("polls requested %q, left out: %+v", got, w.leftOut())
	}
	w.tag(first, "v2.0")
	w.hook("d-0", release, "refs/tags/v2.0")
	if got := requested(w.next); got != "due" {
		t.Errorf("the sync of a third tag requested %q, want a poll", got)
	}
	if got := w.settle("e"); len(got) != 1 || got[0] != "removed  refs/tags/v1.10" {
		t.Errorf("polls requested %q", got)
	}
}

// TestBranchBuiltAnewHasNotChanged changes the options of a watch, which builds its trees again.
func TestBranchBuiltAnewHasNotChanged(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	all := w.limit("ci", "refs/heads/*", 2)
	w.hook("a-0", all, "main")
	w.branch(first, "a")
	w.hook("b-0", all, "a")
	w.settle("c")
	all.Depth = events.DepthFull
	testenv.Must(w.watches.Put(context.Background(), all))(t)
	w.hook("d-0", all, "main")
	w.branch(first, "b")
	w.hook("e-0", all, "b")
	if got := w.settle("f"); len(got) != 1 || w.names() != "a b" {
		t.Errorf("polls requested %q, published %q; want the oldest removed, though its tree is the newest", got, w.names())
	}
}

// TestLimitsArePerWatch has two watches with other limits. A ref stays while one of them keeps it.
func TestLimitsArePerWatch(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.branch(first, "a", "b", "c")
	w.limit("few", "refs/heads/*", 1)
	many := w.limit("many", "refs/heads/*", 3)
	w.watch("one", "main")
	w.settle("a")
	if got := w.names(); got != "a b c main" {
		t.Errorf("published %q", got)
	}
	if left := w.leftOut(); len(left) != 2 || left[0].Count != 3 || left[1].Count != 1 {
		t.Errorf("left out: %+v", left)
	}
	w.unwatch(many)
	if got := w.settle("b"); len(got) != 1 || w.names() != "a main" {
		t.Errorf("polls requested %q, published %q; want what the others keep", got, w.names())
	}
}

// TestInvalidNamesAreSaid has branches whose names cannot be published.
func TestInvalidNamesAreSaid(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	long := strings.Repeat(strings.Repeat("x", 200)+"/", 5) + "x"
	w.branch(first, long)
	w.watch("ci", "refs/heads/*/*/*/*/*/*")
	w.watch("docs", "")
	w.settle("a")
	left := w.leftOut()
	if len(left) != 1 || left[0].App != "ci" || left[0].Reason != state.InvalidName || left[0].Count != 1 || !strings.HasPrefix(left[0].Refs[0], "refs/heads/x") {
		t.Errorf("left out: %+v", left)
	}
	must(t, w.git.SetHead("acme/widgets", long))
	w.settle("b")
	if left := w.leftOut(); len(left) != 2 || left[1].App != "docs" || left[1].Ref != "" || left[1].Reason != state.InvalidName {
		t.Errorf("left out: %+v", left)
	}
	must(t, w.git.SetHead("acme/widgets", "main"))
	must(t, w.git.DeleteRef(context.Background(), "acme/widgets", "refs/heads/"+long))
	w.settle("c")
	if left := w.leftOut(); len(left) != 0 {
		t.Errorf("left out after it is gone: %+v", left)
	}
}
