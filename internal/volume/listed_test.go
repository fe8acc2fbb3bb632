package volume

import (
	"errors"
	"maps"
	"os"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
)

func (w *world) listed(repo string) map[events.Ref]ListedRef {
	w.t.Helper()
	return testenv.Must(w.volume.ListedRefs(repoPath(w.t, repo)))(w.t)
}

// TestListedRefsGoWithTheRepository stores listed refs before the first sync, moves them with the repository, and removes them with it.
func TestListedRefsGoWithTheRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	main, dev := testenv.Must(events.ParseRef("main"))(t), testenv.Must(events.ParseRef("dev"))(t)
	want := map[events.Ref]ListedRef{main: {Commit: commit}, dev: {Commit: commit, Changed: time.Unix(7, 8)},
		testenv.Must(events.ParseRef("refs/tags/tree"))(t): {Commit: commit, Changed: time.Unix(9, 0), Unfit: true},
		testenv.Must(events.ParseRef("gone"))(t):           {Changed: time.Unix(10, 0)}, {}: {Changed: time.Unix(11, 0)}}
	if got := w.listed(widgets); got != nil {
		t.Errorf("before any poll: %v", got)
	}
	fence := w.fence.Add(1)
	testenv.Must(0, w.volume.SetListedRefs(t.Context(), repoPath(t, widgets), fence, want))(t)
	testenv.Must(w.volume.Remove(t.Context(), RemoveRequest{Repo: repoPath(t, widgets), Fence: fence, Force: true}))(t)
	if w.listed(widgets) != nil {
		t.Error("the refs of a repository that was never synced stay after its removal")
	}
	testenv.Must(0, w.volume.SetListedRefs(t.Context(), repoPath(t, widgets), fence, map[events.Ref]ListedRef{}))(t)
	if got := w.listed(widgets); got == nil || len(got) > 0 {
		t.Errorf("none were listed: %v", got)
	}
	testenv.Must(0, w.volume.SetListedRefs(t.Context(), repoPath(t, widgets), fence, want))(t)
	w.syncAt(widgets, "main")
	if got := w.listed(widgets); !maps.Equal(got, want) {
		t.Errorf("after a sync: %v, want %v", got, want)
	}
	if err := w.volume.SetListedRefs(t.Context(), repoPath(t, widgets), fence, nil); !errors.Is(err, ErrStale) {
		t.Errorf("with a stale fence: %v", err)
	}

	file := w.volume.folder(repoPath(t, widgets)).listed()
	content := testenv.Must(os.ReadFile(file))(t)
	testenv.Must(0, os.WriteFile(file, nil, 0o644))(t)
	if got := w.listed(widgets); got != nil {
		t.Errorf("after a power cut: %v", got)
	}
	testenv.Must(0, os.WriteFile(file, content, 0o644))(t)

	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	if got := w.listed(gadgets); !maps.Equal(got, want) || w.listed(widgets) != nil {
		t.Errorf("after a move: %v, and %v at the old path", got, w.listed(widgets))
	}
	testenv.Must(w.volume.Remove(t.Context(), RemoveRequest{Repo: repoPath(t, gadgets), Fence: w.fence.Add(1), Force: true}))(t)
	if got := w.listed(gadgets); got != nil {
		t.Errorf("after the removal: %v", got)
	}
}
