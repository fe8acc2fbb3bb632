package handlers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// links returns the published names of acme/widgets, with the content of the file a: "widgets=1 widgets@dev=2".
func (w *world) links() string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.root, "acme"))
	if !os.IsNotExist(err) {
		must(w.t, err)
	}
	var names []string
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(w.root, "acme", entry.Name(), "a"))
		if os.IsNotExist(err) {
			content, err = []byte("gone"), nil
		}
		must(w.t, err)
		names = append(names, entry.Name()+"="+string(content))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// looks polls twice, ten minutes apart, and again, handles what the polls request, and returns who was told of which removals.
func (w *world) looks(entry string) string {
	w.t.Helper()
	var told []string
	for n := range 3 {
		w.mustHandle(fmt.Sprintf("%s%d-0", entry, n), events.Change{Type: events.ChangeDue, Repo: w.repo()})
		told = append(told, w.removals()...)
		for i, change := range w.next {
			w.mustHandle(fmt.Sprintf("%s%d-%d", entry, n, i+1), change)
			told = append(told, w.removals()...)
		}
		w.later += 10 * time.Minute
	}
	return strings.Join(told, ", ")
}

// removals returns which apps the last outcome tells of removals.
func (w *world) removals() (told []string) {
	for _, r := range w.more {
		if r.Type == events.ResultRemoved && watch.Notable(r) {
			told = append(told, strings.TrimSuffix(r.App+" "+r.Ref.String(), " "))
		}
	}
	return told
}

func (w *world) deleteRef(ref string) {
	w.t.Helper()
	must(w.t, w.git.DeleteRef(w.t.Context(), modelRepo, ref))
}

// TestRefThatNoWatchSelectsGoesAtOnce removes the watch of a ref, and then the ref at the remote, of which no webhook tells.
func TestRefThatNoWatchSelectsGoesAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		selector, ref string
		again         string // watched before the next poll
		waits         bool
	}{
		"a branch":                  {selector: "dev", ref: "refs/heads/dev"},
		"a branch of a pattern":     {selector: "refs/heads/d*", ref: "refs/heads/dev"},
		"a tag of a pattern":        {selector: "refs/tags/v*", ref: "refs/tags/v3"},
		"the former default branch": {selector: "", ref: "refs/heads/main"},
		"another pattern was added": {selector: "refs/tags/v*", ref: "refs/tags/v3", again: "refs/tags/w*"},
		"watched again":             {selector: "refs/tags/v*", ref: "refs/tags/v3", again: "refs/tags/v*", waits: true},
		"watched again by its name": {selector: "refs/heads/d*", ref: "refs/heads/dev", again: "dev", waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			first := w.create(map[string]string{"a": "1"})
			w.branch(first, "other", "dev")
			w.tag(first, "v3")
			w.watch("scan", "other")
			former := w.watch("docs", tc.selector)
			w.settle("a")
			before := w.links()
			w.unwatch(former)
			if tc.selector == "" {
				must(t, w.git.SetHead(modelRepo, "dev"))
			}
			w.deleteRef(tc.ref)
			if tc.again != "" {
				w.watch("ci", tc.again)
			}
			w.due("b-0")
			if got := w.links(); (got == before) != tc.waits || !tc.waits && got != "widgets@other=1" {
				t.Errorf("at the first look: published %s, waits %v", got, tc.waits)
			}
			if told := w.looks("c"); w.links() != "widgets@other=1" || told != "" {
				t.Errorf("after ten minutes: published %s, told %q", w.links(), told)
			}
		})
	}
}

// TestTagOfATreeFailsOnce has a tag of a tree and one of a blob among those that a pattern matches.
func TestTagOfATreeFailsOnce(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	tree := strings.TrimSpace(testenv.Must(w.git.Git(t.Context(), modelRepo, "", "rev-parse", first+"^{tree}"))(t))
	w.tag(first, "v1", "v2")
	must(t, w.git.SetRef(t.Context(), modelRepo, "refs/tags/v3", tree))
	_, err := w.git.Git(t.Context(), modelRepo, "", "-c", "user.name=a", "-c", "user.email=a@example.com", "tag", "-a", "-m", "x", "v4", tree)
	must(t, err)
	w.limit("docs", "refs/tags/v*", 2)
	if got := requested(w.due("a-0")); got != "pushed docs refs/tags/v3, pushed docs refs/tags/v4" {
		t.Errorf("the first poll requested %q", got)
	}
	if got := requested(w.next); got != "due" {
		t.Errorf("the failed sync requested %q, want a poll", got)
	}
	if got := w.settle("b"); len(got) != 1 || got[0] != "pushed docs refs/tags/v1, pushed docs refs/tags/v2" || w.names() != "v1 v2" {
		t.Errorf("the following polls requested %q, published %s", got, w.names())
	}
	if left := w.leftOut(); len(left) != 1 || left[0].Reason != state.NoCommit || left[0].Count != 2 {
		t.Errorf("left out: %+v", left)
	}
	known := testenv.Must(w.states.Load(t.Context(), w.repo()))(t)
	if failing := scoped(known); len(failing) > 0 {
		t.Errorf("the repository is failing: %+v", failing)
	}
	must(t, w.git.SetRef(t.Context(), modelRepo, "refs/tags/v3", first))
	if got := w.settle("c"); len(got) != 1 || got[0] != "pushed docs refs/tags/v3, removed  refs/tags/v1" {
		t.Errorf("as a tag of a commit: %q", got)
	}
}

// TestCommitOfRemoteWithoutRefs pins a commit that no ref names.
func TestCommitOfRemoteWithoutRefs(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.deleteRef("refs/heads/main")
	w.watch("docs", first)
	if w.due("a-0"); w.links() != "widgets@"+first+"=1" {
		t.Errorf("published %s", w.links())
	}
}

// TestUnfitCommitsAreForgotten pins a tree under the name of a branch, and removes the watch of another one.
func TestUnfitCommitsAreForgotten(t *testing.T) {
	w := newWorld(t)
	commits := w.history(2)
	tree := strings.TrimSpace(testenv.Must(w.git.Git(t.Context(), modelRepo, "", "rev-parse", commits[0]+"^{tree}"))(t))
	w.watch("docs", "")
	byHash := w.watch("docs", tree)
	w.settle("a")
	listed := func(name string) volume.ListedRef {
		return testenv.Must(w.handlers.Volume.ListedRefs(w.repo()))(t)[mustRef(name)]
	}
	if one := listed(tree); !one.Unfit {
		t.Errorf("listed %+v, want the watched hash as unfit", one)
	}
	pin := events.Change{URL: w.git.URL(modelRepo), Ref: mustRef("main"), After: tree, Pin: true}
	if r := w.mustHandle("b-0", pin); r.Type != events.ResultFailed {
		t.Fatalf("pinned a tree: %+v", r)
	}
	if one := listed("main"); one.Unfit {
		t.Errorf("listed %+v for what was pinned", one)
	}
	w.mustHandle("c-0", events.Change{URL: w.git.URL(modelRepo), Ref: mustRef(tree)})
	w.unwatch(byHash)
	if w.settle("d"); listed(tree).Unfit {
		t.Error("the hash that nobody watches is still listed")
	}
}

// TestNamesStayWhenRedisReturnsEmpty has nothing in Redis but a watch that was added since, or the restored ones.
func TestNamesStayWhenRedisReturnsEmpty(t *testing.T) {
	for selector, told := range map[string]string{
		"dev": "", "": "", "refs/heads/*": "docs refs/heads/next", "refs/tags/*": "",
	} {
		t.Run(selector, func(t *testing.T) {
			w := newWorld(t)
			w.branch(w.create(map[string]string{"a": "1"}), "dev", "next")
			w.watch("docs", "refs/heads/*")
			w.due("a-0")
			must(t, w.redis.FlushAll(t.Context()).Err())
			w.watch("docs", selector)
			if told := w.looks("b"); told != "" {
				t.Errorf("told %q, want nothing", told)
			}
			if got := w.links(); got != "widgets=1 widgets@dev=1 widgets@next=1" {
				t.Errorf("published %s, want all", got)
			}
			known := testenv.Must(w.states.Load(t.Context(), w.repo()))(t)
			if heads := known.Heads(); len(heads) != 3 {
				t.Errorf("the state has %v, want what is published", heads)
			}
			w.deleteRef("refs/heads/next")
			if got := w.looks("c"); w.links() != "widgets=1 widgets@dev=1" || got != told {
				t.Errorf("published %s, told %q; want without what is gone, and %q told", w.links(), got, told)
			}
		})
	}
}

// TestManyNamesGoInSeveralPolls removes the watch of more refs than one poll removes.
func TestManyNamesGoInSeveralPolls(t *testing.T) {
	testenv.Long(t)
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	for n := range 103 {
		w.tag(first, fmt.Sprint("v", n))
	}
	w.watch("docs", "main")
	tags := w.limit("docs", "refs/tags/*", 200)
	w.looks("a")
	w.unwatch(tags)
	w.mustHandle("b-0", events.Change{Type: events.ChangeDue, Repo: w.repo()})
	if left := w.publishedTags(); len(left) != 3 || requested(w.next) != "due" {
		t.Errorf("%d tags are left, requested %q; want 3, and another poll", len(left), requested(w.next))
	}
	w.mustHandle("c-0", w.next[0])
	if w.links() != "widgets=1" || len(w.next) > 0 {
		t.Errorf("published %s, requested %q", w.links(), requested(w.next))
	}
}

// TestManyAppsAreToldInSeveralPolls has refs go that many apps watch.
func TestManyAppsAreToldInSeveralPolls(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	fields := map[string]string{}
	for app := range 210 {
		w.watch(fmt.Sprint("app", app), "refs/tags/*")
		for tag := range 6 {
			fields[fmt.Sprintf("given:refs/tags/v%d:app%d", tag, app)] = first + " 1-" + first
			fields[fmt.Sprintf("head:refs/tags/v%d", tag)] = first
		}
	}
	must(t, w.redis.HSet(t.Context(), events.DefaultNamespace.Repo(w.repo()), fields).Err())
	poll := events.Change{Type: events.ChangeDue, Repo: w.repo()}
	w.mustHandle("a-0", poll)
	w.later += 10 * time.Minute
	w.mustHandle("b-0", poll)
	if told := len(w.more); told != 5*210 || requested(w.next) != "due" {
		t.Fatalf("told %d, requested %q; want five refs, and another poll", told, requested(w.next))
	}
	w.mustHandle("c-0", w.next[0])
	if told := len(w.more); told != 210 || len(w.next) > 0 {
		t.Errorf("told %d, requested %q; want the last ref", told, requested(w.next))
	}
}

// scoped returns the troubles of a state that are not of one change alone.
func scoped(known state.Repo) []state.Trouble {
	failing, _ := known.Failing()
	return slices.DeleteFunc(failing, func(t state.Trouble) bool { return t.Scope == events.ScopeChange })
}
