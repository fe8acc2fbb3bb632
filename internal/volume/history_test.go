package volume

import (
	"fmt"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/object"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

func (w *world) syncDepth(ref string, depth events.Depth) SyncResult {
	w.t.Helper()
	req := w.request(ref)
	req.Depth = depth
	return testenv.Must(w.volume.Sync(w.t.Context(), req))(w.t)
}

// mustShow checks the number of commits that "git log" shows in a published tree, and checks the tree with Git.
func (w *world) mustShow(name string, commits int) {
	w.t.Helper()
	if got := strings.Count(w.gitIn(name, "log", "--format=%H"), "\n") + 1; got != commits {
		w.t.Errorf("git log in %s shows %d commits, want %d", name, got, commits)
	}
	if out := w.gitIn(name, "fsck", "--full", "--strict"); strings.Contains(out, "missing") {
		w.t.Errorf("git fsck in %s: %s", name, out)
	}
	if out := w.gitIn(name, "status", "--porcelain"); out != "" {
		w.t.Errorf("git status in %s: %s", name, out)
	}
}

func TestDepth(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "0"})
	pushes := 1
	push := func(n int) {
		for range n {
			w.push(map[string]string{"a": fmt.Sprint("content ", pushes)})
			pushes++
		}
	}
	push(9)
	w.syncDepth("", 0)
	w.mustShow(widgets, 1)
	push(1)
	w.syncDepth("", 0)
	w.mustShow(widgets, 1)

	if res := w.syncDepth("", 3); !res.Published || len(res.Files) != 0 {
		t.Errorf("deepened: %+v", res)
	}
	w.mustShow(widgets, 3)
	push(2)
	w.syncDepth("", 0) // from another app, which does not set a depth
	w.mustShow(widgets, 3)
	if res := w.syncDepth("", 2); res.Published {
		t.Errorf("published again: %+v", res)
	}

	w.syncDepth("", events.DepthFull)
	w.mustShow(widgets, pushes)
	push(3)
	w.syncDepth("", 5)
	w.mustShow(widgets, pushes)

	w.commit("side", gitserver.Edit{Parent: w.gitIn(widgets, "rev-parse", "HEAD~2"), Write: map[string]string{"s": "1"}})
	w.syncDepth("side", 0)
	w.mustShow(widgets+"@side", pushes-1)
	push(1)
	w.syncDepth("", 0)
	w.mustShow(widgets, pushes)
	mustBeTidy(t, w)
}

// One ref was synced with a depth. The tree of another ref is deepened only when its own sync requests a depth.
func TestDepthOfAnotherRef(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "0"})
	for i := range 4 {
		w.push(map[string]string{"a": fmt.Sprint("main ", i)})
		w.commit("side", gitserver.Edit{Parent: map[bool]string{true: first}[i == 0], Write: map[string]string{"s": fmt.Sprint(i)}})
	}
	w.syncDepth("side", 0)
	w.syncDepth("main", 4)
	w.mustShow(widgets, 4)
	w.mustShow(widgets+"@side", 1)
	w.syncDepth("side", 3)
	w.mustShow(widgets+"@side", 4)
	w.mustShow(widgets, 4)
}

func TestDepthSurvivesNewStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "0"})
	for i := range 6 {
		w.push(map[string]string{"a": fmt.Sprint(i)})
	}
	w.syncDepth("", 4)
	f := w.volume.folder(repoPath(t, widgets))
	testenv.Must(0, testenv.Must(f.currentStore(nil))(t).requestRefetch())(t)
	w.push(map[string]string{"a": "last"})
	w.syncDepth("", 0)
	if n := testenv.Must(f.generations())(t); len(n) != 2 {
		t.Fatalf("generations %v", n)
	}
	w.mustShow(widgets, 4)
	testenv.Must(0, w.prune(f, w.fence.Load()))(t)
	w.mustShow(widgets, 4)
}

// TestCompleteHistoryIsNotReadAgain walks a push on top of a history that is known to be complete.
func TestCompleteHistoryIsNotReadAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "0"})
	before := object.ParseID(w.push(map[string]string{"a": "1"}))
	w.syncDepth("", 0) // shallow: without the first commit
	tip := object.ParseID(w.push(map[string]string{"a": "2"}))
	w.syncDepth("", 0)
	s := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
	objects := object.Open(s.dir)
	defer objects.Close()
	for _, c := range []struct {
		shallow, whole []object.ID
		ends           int // -1 for an error
	}{
		{shallow: []object.ID{before}, ends: 1},
		{whole: []object.ID{before}, ends: 0},
		{ends: -1},
	} {
		ends, err := reachable(t.Context(), objects, []object.ID{tip}, c.shallow, c.whole)
		if (err != nil) != (c.ends < 0) || err == nil && len(ends) != c.ends {
			t.Errorf("shallow %v, whole %v: %v, %v", c.shallow, c.whole, ends, err)
		}
	}
}
