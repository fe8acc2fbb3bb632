package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/view"
)

// viewSteps are the steps of a publication of views.
var viewSteps = []string{
	"subtrees checked out", "subtree placed", "subtrees built", "confirmed", "subtrees unfinished", "subtree flipped", "subtrees flipped",
}

// crashViews are the views of the crash tests: two that change in each version, one that does not, and one that comes and goes.
var crashViews = map[string][]string{"a": {"a"}, "both": {"a", "b"}, "same": {"same"}, "odd": {"odd"}}

func crashFiles(version int) gitserver.Edit {
	text := fmt.Sprint(version)
	edit := gitserver.Edit{Write: map[string]string{"a/f": text, "a/g": text, "b": text}}
	if version%2 == 1 {
		edit.Write["odd"] = text
	} else {
		edit.Delete = []string{"odd"}
	}
	return edit
}

// mustHaveViews checks that each published view is that of one of the versions.
func (w *world) mustHaveViews(when string, versions ...int) {
	w.t.Helper()
	for name, paths := range crashViews {
		root := w.path(SubtreePath(widgets, "argo", name))
		if _, err := os.Lstat(root); errors.Is(err, os.ErrNotExist) && slices.Contains(versions, 0) {
			continue
		}
		got, found := readTree(w.t, root), false
		for _, version := range versions {
			want := map[string]string{"a/f": fmt.Sprint(version), "a/g": fmt.Sprint(version), "b": fmt.Sprint(version), "same": "same"}
			if version%2 == 1 {
				want["odd"] = fmt.Sprint(version)
			}
			maps.DeleteFunc(want, func(file, _ string) bool {
				return !slices.Contains(paths, filepath.Dir(file)) && !slices.Contains(paths, file)
			})
			found = found || version > 0 && maps.Equal(got, want)
		}
		if !found {
			w.t.Errorf("%s: the view %s has %q, want that of versions %d", when, name, got, versions)
		}
	}
}

// TestKilledWhilePublishingViews kills a process at each step of a publication of views. Each view that readers see is that of one
// commit, and the next publication completes them, also if the repository is back at an older commit.
func TestKilledWhilePublishingViews(t *testing.T) {
	t.Parallel()
	if root := os.Getenv("LOCKSTEP_TEST_DIE_ROOT"); root != "" {
		v, fence := testenv.Must(OpenVolume(root, Config{}))(t), uint64(0)
		testenv.Must(fmt.Sscan(os.Getenv("LOCKSTEP_TEST_DIE_FENCE"), &fence))(t)
		v.cfg.Step = killAt(os.Getenv("LOCKSTEP_TEST_DIE_STEP"))
		t.Fatalf("not killed: %v", v.PublishSubtrees(t.Context(), SubtreesRequest{
			Repo: repoPath(t, widgets), App: "argo", Path: widgets, Tree: os.Getenv("LOCKSTEP_TEST_DIE_TREE"), Fence: fence,
			Selections: testenv.Must(view.New(crashViews))(t),
		}))
		return
	}
	for i, step := range viewSteps {
		for _, first := range testenv.Form([]bool{i%3 == 0}, []bool{true, false}) {
			t.Run(fmt.Sprintf("%s/first=%v", step, first), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.create(map[string]string{"same": "same"})
				old := w.commit(gitserver.Main, crashFiles(1))
				last := 0
				if !first {
					w.publishViews(w.sync(""), crashViews)
					last = 1
				}
				w.commit(gitserver.Main, crashFiles(2))
				synced := w.sync("")
				cmd := w.dying(step, "")
				cmd.Args[1] = "-test.run=^TestKilledWhilePublishingViews$"
				cmd.Env = append(cmd.Env, "LOCKSTEP_TEST_DIE_TREE="+synced.Tree)
				w.mustBeKilled(cmd, step)

				w.mustHaveViews("killed", last, 2)
				back := w.commit(gitserver.Main, gitserver.Edit{Parent: old, Write: map[string]string{"other": "1"}})
				res := w.sync("")
				if w.mustHaveViews("synced", last, 2); res.After != back {
					t.Errorf("synced %s", res.After)
				}
				w.publishViews(res, crashViews)
				w.mustHaveViews("published again", 1)
				w.viewsAfterGC(Config{Grace: 1})
				if left := w.viewsAfterGC(Config{Grace: 1}); len(left) != 4 {
					t.Errorf("left %v", left)
				}
				w.mustHaveViews("cleaned up", 1)
				w.mustVerify()
				mustBeTidy(t, w)
			})
		}
	}
}

// TestStaleWhilePublishingViews publishes views as a newer holder at each step of an older one, which must change nothing.
func TestStaleWhilePublishingViews(t *testing.T) {
	t.Parallel()
	for _, step := range viewSteps[:slices.Index(viewSteps, "subtrees unfinished")] { // there it has the file lock
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"same": "same"})
			w.commit(gitserver.Main, crashFiles(1))
			w.publishViews(w.sync(""), crashViews)
			w.commit(gitserver.Main, crashFiles(2))
			stale := w.viewRequest(w.sync(""), crashViews)
			slow, done := w.open(w.volume.Root(), Config{}), false
			slow.cfg.Step = func(at string) {
				if at == step && !done {
					done = true
					w.commit(gitserver.Main, crashFiles(3))
					w.publishViews(w.sync(""), crashViews)
				}
			}
			err := slow.PublishSubtrees(t.Context(), stale)
			if !errors.Is(err, ErrStale) {
				t.Fatalf("got %v", err)
			}
			testenv.MustFail(t, err, events.ClassBusy, events.Contention)
			w.mustHaveViews("stale", 3)
			w.viewsAfterGC(Config{Grace: 1})
			if left := w.viewsAfterGC(Config{Grace: 1}); len(left) != 4 {
				t.Errorf("left %v", left)
			}
			w.mustHaveViews("cleaned up", 3)
			w.mustVerify()
		})
	}
}

// A lease that cannot be confirmed publishes nothing.
func TestLostLeasePublishesNoViews(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"same": "same"})
	w.commit(gitserver.Main, crashFiles(1))
	w.publishViews(w.sync(""), crashViews)
	w.commit(gitserver.Main, crashFiles(2))
	req, lost := w.viewRequest(w.sync(""), crashViews), errors.New("lease lost")
	req.Confirm = func(ctx context.Context) error { return lost }
	if err := w.volume.PublishSubtrees(t.Context(), req); !errors.Is(err, lost) {
		t.Errorf("got %v", err)
	}
	w.mustHaveViews("lost", 1)
}
