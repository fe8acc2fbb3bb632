package handlers_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// stored returns the state of acme/widgets and of its views.
func (w *world) stored() (repo, views map[string]string) {
	w.t.Helper()
	ctx := context.Background()
	repo, err := w.redis.HGetAll(ctx, events.DefaultNamespace.Repo(w.repo())).Result()
	must(w.t, err)
	views, err = w.redis.HGetAll(ctx, events.DefaultNamespace.Views(w.repo())).Result()
	must(w.t, err)
	return repo, views
}

// loses has Redis return with the state that it had before do.
func (w *world) loses(do func()) {
	w.t.Helper()
	ctx, key, keyOfViews := context.Background(), events.DefaultNamespace.Repo(w.repo()), events.DefaultNamespace.Views(w.repo())
	repo, views := w.stored()
	do()
	must(w.t, w.redis.Del(ctx, key, keyOfViews).Err())
	if len(repo) > 0 {
		must(w.t, w.redis.HSet(ctx, key, repo).Err())
	}
	if len(views) > 0 {
		must(w.t, w.redis.HSet(ctx, keyOfViews, views).Err())
	}
}

// consumer is what an app, or one of its views, has of acme/widgets. It skips results whose IDs it knows, applies only what a result lists, and does not
// look whether that begins at what it has.
type consumer struct {
	files   map[string]string
	results map[string]events.Result // by ID
}

type consumers struct {
	*world
	of map[string]*consumer // by app, or app and view
}

func (c *consumers) receive(results ...events.Result) {
	c.t.Helper()
	for _, r := range results {
		name := strings.TrimSuffix(r.App+" "+r.View, " ")
		if c.of[name] == nil {
			c.of[name] = &consumer{map[string]string{}, map[string]events.Result{}}
		}
		app := c.of[name]
		if r.Type == events.ResultRemoved {
			app.files = map[string]string{}
			continue
		}
		if known, ok := app.results[r.ID]; ok {
			if known.After != r.After || known.Tree != r.Tree {
				c.t.Errorf("%s is the ID of %s in %s and of %s in %s", r.ID, known.After, known.Tree, r.After, r.Tree)
			}
			continue
		}
		app.results[r.ID] = r
		if r.Full || r.Before == "" {
			app.files = map[string]string{}
		}
		for _, f := range r.Files {
			delete(app.files, f.From)
			content, err := os.ReadFile(filepath.Join(c.root, r.Tree, f.Path))
			if app.files[f.Path] = string(content); f.Status == events.FileDeleted {
				delete(app.files, f.Path)
			} else if err != nil {
				c.t.Error(err)
			}
		}
	}
}

// handles settles a change, and gives its results to the consumers.
func (c *consumers) handles(entry string, change events.Change) {
	c.t.Helper()
	c.receive(append([]events.Result{c.mustHandle(entry, change)}, c.more...)...)
}

// polls polls until nothing is due.
func (c *consumers) polls(entry string) {
	c.t.Helper()
	for n := range 3 {
		c.mustHandle(fmt.Sprint(entry, n, "-0"), events.Change{Type: events.ChangeDue, Repo: c.repo()})
		due := c.next
		if len(due) == 0 {
			return
		}
		for i, change := range due {
			c.handles(fmt.Sprint(entry, n, "-", i+1), change)
		}
	}
	c.t.Error("polls request syncs again and again")
}

// must have exactly the files of the remote's head.
func (c *consumers) mustBeAtTheHead() {
	c.t.Helper()
	want := map[string]string{}
	names := testenv.Must(os.ReadDir(filepath.Join(c.root, "acme/widgets")))(c.t)
	for _, name := range names {
		if content, err := os.ReadFile(filepath.Join(c.root, "acme/widgets", name.Name())); err == nil {
			want[name.Name()] = string(content)
		}
	}
	for name, app := range c.of {
		_, view, isView := strings.Cut(name, " ")
		for path, content := range want {
			if has := app.files[path]; (!isView || path == view) && has != content {
				c.t.Errorf("%s has %s = %q, want %q", name, path, has, content)
			}
		}
		for path := range app.files {
			if _, ok := want[path]; !ok {
				c.t.Errorf("%s still has %s", name, path)
			}
		}
	}
}

// TestAppsEndAtTheHeadAfterRedisReturnsWithOlderData loses what was settled since c1. Two apps, one of them with views, have received all of it.
func TestAppsEndAtTheHeadAfterRedisReturnsWithOlderData(t *testing.T) {
	for name, tc := range map[string]struct {
		lost  func(w *world, sync func(), c1 string) // what Redis forgets
		after func(w *world, sync func(), c1 string) // and what follows, before a poll
	}{
		"a push": {func(w *world, sync func(), _ string) { w.push(map[string]string{"a": "2"}); sync() }, nil},
		"a push, and another one follows": {
			func(w *world, sync func(), _ string) { w.push(map[string]string{"a": "2"}); sync() },
			func(w *world, sync func(), _ string) { w.push(map[string]string{"b": "2"}); sync() },
		},
		"a push that is reverted then": {
			func(w *world, sync func(), _ string) { w.push(map[string]string{"a": "2"}); sync() },
			func(w *world, sync func(), _ string) { w.push(map[string]string{"a": "1", "b": "2"}); sync() },
		},
		"a push whose commit is dropped then": {
			func(w *world, sync func(), _ string) { w.push(map[string]string{"a": "2", "c": "1"}); sync() },
			func(w *world, sync func(), c1 string) { w.force(c1); sync() },
		},
		"a push and a push back": {func(w *world, sync func(), c1 string) {
			w.push(map[string]string{"a": "2"})
			sync()
			w.force(c1)
			sync()
		}, nil},
		"many pushes, one of them not settled": {func(w *world, sync func(), c1 string) {
			for n := range 4 {
				w.push(map[string]string{"a": fmt.Sprint(n), fmt.Sprint("n", n): "1"})
				sync()
			}
			w.force(c1)
			w.handleUnsettled("9-9", events.Change{URL: w.git.URL("acme/widgets"), App: "docs"})
		}, nil},
		"a push, and that it was dropped, not settled": {
			func(w *world, sync func(), c1 string) {
				w.push(map[string]string{"a": "2", "c": "1"})
				sync()
				w.force(c1)
				w.push(map[string]string{"b": "2"})
				w.handleUnsettled("9-9", events.Change{URL: w.git.URL("acme/widgets"), App: "docs"})
			},
			func(w *world, sync func(), _ string) { w.push(map[string]string{"b": "3"}); sync() },
		},
		"a push, and that it was dropped, not settled, and nothing follows": {
			func(w *world, sync func(), c1 string) {
				w.push(map[string]string{"a": "2", "c": "1"})
				sync()
				w.force(c1)
				w.push(map[string]string{"b": "2"})
				w.handleUnsettled("9-9", events.Change{URL: w.git.URL("acme/widgets"), App: "docs"})
			},
			func(_ *world, sync func(), _ string) { sync() },
		},
		"the removal of the repository": {func(w *world, sync func(), _ string) {
			away := w.git.Dir("acme/widgets") + ".away"
			must(w.t, os.Rename(w.git.Dir("acme/widgets"), away))
			w.mustHandle("8-8", events.Change{Type: events.ChangeRemoved, URL: w.git.URL("acme/widgets")})
			must(w.t, os.Rename(away, w.git.Dir("acme/widgets")))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := &consumers{w, map[string]*consumer{}}
			c1 := w.create(map[string]string{"a": "1", "b": "1"})
			w.watch("search", "")
			w.watchViews("docs", "", map[string][]string{"a": {"a"}, "b": {"b"}})
			c.polls("1")
			at := 1
			sync := func() {
				at++
				for n, app := range []string{"docs", "search"} {
					c.handles(fmt.Sprint(at, "-", n), events.Change{URL: w.git.URL("acme/widgets"), App: app, Watched: true})
				}
			}
			w.loses(func() { tc.lost(w, sync, c1) })
			if strings.HasPrefix(name, "the removal") { // everybody has heard of it
				for _, app := range c.of {
					app.files = map[string]string{}
				}
			}
			at = 1 // the same entries are delivered again, but the remote has moved on
			if tc.after != nil {
				tc.after(w, sync, c1)
			}
			c.polls("20")
			c.mustBeAtTheHead()
			results := len(c.of["search"].results)
			if c.polls("30"); len(c.of["search"].results) != results {
				t.Error("another poll repeats results")
			}
		})
	}
}

// force moves the branch of the remote.
func (w *world) force(commit string) {
	w.t.Helper()
	must(w.t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/main", commit))
}

// TestSettledAgainIsTheSameResult handles one entry by workers that die before they settle it, or whose settling Redis forgets: the ID stays, and the files are
// those since the last settled result. Another commit, or the same one published again, has another ID.
func TestSettledAgainIsTheSameResult(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	change := events.Change{URL: w.git.URL("acme/widgets"), App: "docs"}
	w.mustHandle("1-0", change)
	second := w.push(map[string]string{"b": "2"})
	var ids []string
	for range 2 {
		died := testenv.Must(w.outcome("2-0", change))(t)
		ids = append(ids, died.Result.ID)
	}
	w.loses(func() {
		r := w.mustHandle("2-0", change)
		if ids = append(ids, r.ID); r.Before != first || r.After != second || r.Full || len(r.Files) != 1 {
			t.Errorf("after two crashes: %+v", r)
		}
	})
	ids = append(ids, w.mustHandle("2-0", change).ID, w.mustHandle("2-0", change).ID)
	if slices.Sort(ids); ids[0] != ids[len(ids)-1] {
		t.Errorf("IDs %q, want one", ids)
	}
	w.loses(func() {
		w.force(first)
		ids = append(ids, w.mustHandle("2-0", change).ID)
		w.force(second)
		ids = append(ids, w.mustHandle("2-0", change).ID)
	})
	if slices.Sort(ids); len(slices.Compact(ids)) != 3 {
		t.Errorf("IDs %q of three publications", ids)
	}
}

// TestResultThatAnAppMayHaveMissedIsRepeated has the state of an import: docs has received nothing for certain.
func TestResultThatAnAppMayHaveMissedIsRepeated(t *testing.T) {
	for _, app := range []string{"docs", ""} {
		t.Run("app "+app, func(t *testing.T) {
			w := newWorld(t)
			w.create(map[string]string{"a": "1"})
			if app != "" {
				w.watch(app, "")
				w.watch("search", "")
			}
			change := events.Change{URL: w.git.URL("acme/widgets"), App: app}
			w.mustHandle("1-0", change)
			w.due("a-0")
			head := w.push(map[string]string{"b": "2"})
			w.mustHandle("2-0", change)
			w.due("b-0")
			key, field := events.DefaultNamespace.Repo(w.repo()), "given:refs/heads/main:"+app
			must(t, w.redis.HSet(context.Background(), key, field, head+" -").Err())
			if app != "" {
				w.mustHandle("c-0", events.Change{Type: events.ChangeDue, Repo: w.repo()})
				if got := requested(w.next); got != "pushed docs" {
					t.Fatalf("the poll requested %q, want a sync for docs", got)
				}
			}
			if r := w.mustHandle("d-0", change); r.Before != "" || len(r.Files) != 2 {
				t.Errorf("%d files since %q, want the whole tree", len(r.Files), r.Before)
			}
			if r := w.mustHandle("e-0", change); r.Before != head || len(r.Files) != 0 {
				t.Errorf("then %d files since %q", len(r.Files), r.Before)
			}
			if got := requested(w.due("f-0")); got != "" {
				t.Errorf("the next poll requested %q", got)
			}
		})
	}
}

// TestNothingIsRepeatedAfterARename checks that what apps were given counts at the new path, where trees have other names.
func TestNothingIsRepeatedAfterARename(t *testing.T) {
	w := newWorld(t)
	move := w.renamed()
	w.mustHandle("2-0", move)
	w.mustHandle("3-0", events.Change{Type: events.ChangeDue, Repo: move.To})
	if got := requested(w.next); got != "" {
		t.Errorf("the poll after the move requested %q", got)
	}
}

// TestRebuiltTreeIsGivenToEachAppOnce builds the tree of a commit again.
func TestRebuiltTreeIsGivenToEachAppOnce(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.watch("docs", "")
	w.watch("search", "")
	w.due("a-0")
	must(t, os.Remove(filepath.Join(w.root, "acme/widgets")))
	if got := requested(w.due("c-0")); got != "pushed docs, pushed search" {
		t.Errorf("the poll requested %q", got)
	}
	if got := requested(w.due("d-0")); got != "" {
		t.Errorf("the next poll requested %q", got)
	}
}
