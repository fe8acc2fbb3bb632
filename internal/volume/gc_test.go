package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
)

func TestGCDeletesExpiredTreesAndLeftovers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": noise(t, 1<<20)})
	old := w.sync("")
	commit := w.push(map[string]string{"a": noise(t, 1<<20)})
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	testenv.Must(0, os.MkdirAll(f.build(1), 0o755))(t)
	testenv.Must(0, os.MkdirAll(f.quarantine(1), 0o755))(t)

	if got := w.gc(false); got.Trees != 0 || got.Usage.Trees != 2 {
		t.Errorf("within the grace: %+v", got)
	}
	mustBeTidy(t, w)
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	got := w.gc(false)
	if got.Trees != 1 || got.Usage.Trees != 1 || got.Freed < 1<<20 {
		t.Errorf("after the grace: %+v", got)
	}
	if _, err := os.Stat(w.path(old.Tree)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the replaced tree is still there: %v", err)
	}
	w.mustBeSound(widgets, commit)
	mustBeTidy(t, w)
}

func TestIsTidy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	repo := repoPath(t, widgets)
	if w.volume.IsTidy(repo) {
		t.Error("what is not there is tidy")
	}
	for name, untidy := range map[string]func(f folder){
		"nothing measured":  func(f folder) { testenv.Must(0, os.Remove(f.usage()))(t) },
		"a quarantine":      func(f folder) { testenv.Must(0, os.MkdirAll(f.quarantine(1), 0o755))(t) },
		"a tree half built": func(f folder) { testenv.Must(0, os.MkdirAll(f.build(1), 0o755))(t) },
		"a killed preparation instead of a prepared tree": func(f folder) {
			w.push(map[string]string{"a": noise(t, 10)})
			w.sync("")
			w.prepare()
			w.volume.cfg.Grace = 1
			w.gc(false)
			testenv.Must(0, os.MkdirAll(f.building(), 0o755))(t)
			testenv.Must(0, os.Rename(w.nextTree(), f.build(1)))(t)
		},
		"a store too many": func(f folder) { testenv.Must(0, os.MkdirAll(f.generation(7).dir, 0o755))(t) },
		"trash":            func(f folder) { testenv.Must(0, os.MkdirAll(filepath.Join(f.trash(), "x"), 0o755))(t) },
		"a replaced tree": func(folder) {
			w.push(map[string]string{"a": noise(t, 10)})
			w.sync("")
		},
	} {
		w.volume.cfg.Grace = 1
		w.sync("")
		w.gc(false)
		if !w.volume.IsTidy(repo) {
			t.Fatalf("%s: not tidy before", name)
		}
		w.volume.AwaitDeletions() // otherwise one of them may delete what follows
		untidy(w.volume.folder(repo))
		if w.volume.IsTidy(repo) {
			t.Errorf("%s: it is taken for tidy", name)
		}
	}
}

func TestGCOfUnknownRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if got := w.gc(true); got.Usage.Bytes != 0 || got.Freed != 0 {
		t.Errorf("got %+v", got)
	}
	if entries := testenv.Must(os.ReadDir(w.volume.reposDir()))(t); len(entries) != 0 {
		t.Errorf("it made %v", entries)
	}
}

func TestStaleGCDoesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.sync("")
	_, err := w.volume.GC(t.Context(), GCRequest{Repo: repoPath(t, widgets), Fence: 1})
	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
}

func TestReposListsAllRepositories(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	want := []string{"Acme/Widgets", "acme/gadgets", "group/sub/name"}
	for i := range 3 * listBatch / 2 {
		want = append(want, fmt.Sprintf("many/repo%d", i))
	}
	for _, path := range want[:3] {
		req := w.request("")
		req.Repo = repoPath(t, path)
		testenv.Must(w.volume.Sync(t.Context(), req))(t)
	}
	for _, path := range want[3:] {
		f := w.volume.folder(repoPath(t, path))
		testenv.Must(0, os.MkdirAll(f.dir, 0o755))(t)
		testenv.Must(0, f.writeBinding(binding{Repo: repoPath(t, path), Remote: "https://example.org/x"}))(t)
	}
	testenv.Must(0, os.MkdirAll(w.volume.folder(repoPath(t, "acme/removed")).dir, 0o755))(t)
	damaged := w.volume.folder(repoPath(t, "acme/damaged"))
	testenv.Must(0, os.MkdirAll(damaged.dir, 0o755))(t)
	testenv.Must(0, os.WriteFile(damaged.binding(), []byte("{"), 0o644))(t)

	var got []string
	failed := 0
	for repo, err := range w.volume.Repos() {
		if err != nil {
			failed++
			continue
		}
		got = append(got, repo.String())
	}

	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d repositories, want %d: %.200v", len(got), len(want), got)
	}
	if failed != 1 {
		t.Errorf("%d errors, want that of the damaged one", failed)
	}
	for range w.volume.Repos() {
		break // one is enough
	}
}

func TestLeftoversOfTheVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := time.Now().Add(-2 * leftoverAge)
	admin := w.path(adminDir)
	for _, name := range []string{"try-old", "try-young"} {
		testenv.Must(0, os.MkdirAll(filepath.Join(admin, name, "sub"), 0o755))(t)
	}
	for _, name := range []string{"volume-OLD", "volume-YOUNG", "usage.tmp-old", "bind.lock"} {
		testenv.Must(0, os.WriteFile(filepath.Join(admin, name), nil, 0o644))(t)
	}
	for _, name := range []string{"try-old", "volume-OLD", "usage.tmp-old", "bind.lock", "volume", "repos"} {
		testenv.Must(0, os.Chtimes(filepath.Join(admin, name), old, old))(t)
	}

	testenv.Must(0, w.volume.SweepLeftovers())(t)

	var left []string
	for _, entry := range testenv.Must(os.ReadDir(admin))(t) {
		left = append(left, entry.Name())
	}
	if want := []string{"bind.lock", "layout", "repos", "try-young", "volume", "volume-YOUNG"}; !slices.Equal(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
}

// TestTreesInGraceAreTidy has trees that garbage collection must keep: one in its grace period, and a prepared one.
func TestTreesInGraceAreTidy(t *testing.T) {
	t.Parallel()
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprintf("prepared=%v", prepared), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": "0"})
			w.sync("")
			cfg := Config{KeepPrepared: 1}
			if prepared {
				w.prepare()
			} else {
				w.push(map[string]string{"a": "1"})
				w.sync("")
				cfg = Config{Grace: 1}
			}
			w.gc(false)
			if !w.volume.IsTidy(repoPath(t, widgets)) {
				t.Error("it would be looked at again")
			}
			w.volume = w.open(w.volume.Root(), cfg)
			if w.volume.IsTidy(repoPath(t, widgets)) {
				t.Error("it would not be looked at")
			}
		})
	}
}

// A path may be bound to a remote from which nothing was ever fetched.
func TestGCOfNeverFetchedRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	_, err := w.trySync("")
	testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
	if got := w.gc(true); got.Usage.Trees != 0 || got.Usage.Measured.IsZero() {
		t.Errorf("got %+v", got)
	}
	mustBeTidy(t, w)
}
