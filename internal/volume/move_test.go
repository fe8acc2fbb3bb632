package volume

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

const gadgets = "corp/gadgets" // what acme/widgets is renamed to

func (w *world) move() MoveRequest { return w.moveBetween(widgets, gadgets) }

func (w *world) moveBetween(from, to string) MoveRequest {
	w.t.Helper()
	return MoveRequest{
		From: repoPath(w.t, from), To: repoPath(w.t, to), Remote: Remote{URL: w.git.URL(to)},
		Former: []Remote{{URL: w.git.URL(from)}}, Fence: w.fence.Add(1), ToFence: w.fence.Add(1),
	}
}

func (w *world) rename(from, to string) {
	w.t.Helper()
	testenv.Must(0, w.git.Rename(from, to))(w.t)
}

func (w *world) requestAt(repo, ref string) SyncRequest {
	w.t.Helper()
	req := w.request(ref)
	req.Repo, req.URL = repoPath(w.t, repo), w.git.URL(repo)
	return req
}

func (w *world) syncAt(repo, ref string) SyncResult {
	w.t.Helper()
	return testenv.Must(w.volume.Sync(w.t.Context(), w.requestAt(repo, ref)))(w.t)
}

func (w *world) gcAt(repo string) GCResult {
	w.t.Helper()
	return testenv.Must(w.volume.GC(w.t.Context(), GCRequest{Repo: repoPath(w.t, repo), Fence: w.fence.Add(1)}))(w.t)
}

func (w *world) mustVerifyAt(repo string) {
	w.t.Helper()
	report := testenv.Must(w.volume.Verify(w.t.Context(), VerifyRequest{Repo: repoPath(w.t, repo), Fence: w.fence.Add(1)}))(w.t)
	if report.Found > 0 || report.Objects == 0 || report.Files == 0 {
		w.t.Errorf("verify %s: %+v", repo, report)
	}
}

func (w *world) repos() (all []string) {
	w.t.Helper()
	for repo, err := range w.volume.Repos() {
		all = append(all, testenv.Must(repo, err)(w.t).String())
	}
	slices.Sort(all)
	return all
}

// plain returns how the plain name of a repository is published.
func (w *world) plain(repo string) Located {
	w.t.Helper()
	at, _, err := w.volume.Locate(repoPath(w.t, repo), events.Ref{})
	return testenv.Must(at, err)(w.t)
}

// fetches counts the fetches from a repository under any of its names.
func (w *world) fetches(repos ...string) (n int) {
	for _, repo := range repos {
		n += w.git.Stats(repo).UploadPacks
	}
	return n
}

func TestMoveFetchesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := map[string]string{"a": "1", "dir/b": "2", "dir/sub/c": "3"}
	main := w.create(files)
	v1 := w.commit("v1", gitserver.Edit{Write: map[string]string{"v": "1"}, Exec: map[string]string{"run": "x"}, Link: map[string]string{"link": "v"}})
	testenv.Must(0, w.git.Tag(t.Context(), widgets, "t/1", main))(t)
	old := w.sync("")
	w.sync("v1")
	w.sync("refs/tags/t/1")
	before := w.fetches(widgets)
	w.rename(widgets, gadgets)

	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)

	at := w.plain(gadgets)
	if at.Name != gadgets || !strings.HasPrefix(at.Tree, ".lockstep/repos/corp/gadgets/trees/") {
		t.Errorf("got %+v", at)
	}
	if n := w.fetches(widgets, gadgets); n != before {
		t.Errorf("%d fetches more", n-before)
	}
	names := map[string]string{"": main, "@v1": v1, "@refs%2Ftags%2Ft%2F1": main}
	for suffix, commit := range names {
		w.mustBeSound(gadgets+suffix, commit)
		w.mustBeSound(widgets+suffix, commit)
	}
	w.mustRead(gadgets, files)
	w.mustVerifyAt(gadgets)
	w.mustVerifyAt(widgets)
	mustShareFiles(t, w.path(gadgets), w.path(widgets), "dir/b")
	if got := w.repos(); !slices.Equal(got, []string{widgets, gadgets}) {
		t.Errorf("repositories: %v", got)
	}
	if _, ok, err := w.volume.Published(repoPath(t, widgets)); ok || err != nil {
		t.Errorf("the old path is taken for a repository: %v", err)
	}
	w.gcAt(widgets)
	w.gcAt(gadgets)
	if !w.volume.IsTidy(repoPath(t, widgets)) || !w.volume.IsTidy(repoPath(t, gadgets)) {
		t.Error("there is something to tidy")
	}

	req := w.removal()
	if removed := testenv.Must(w.volume.Remove(t.Context(), req))(t); removed {
		t.Error("the old name was removed within its grace")
	}
	w.mustBeSound(old.Path, main)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	if again := w.plain(gadgets); again != at {
		t.Errorf("the same request again: at %+v, want %+v", again, at)
	}

	next := testenv.Must(w.git.Commit(t.Context(), gadgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	synced := w.syncAt(gadgets, "")
	if synced.Before != main || len(synced.Files) != 1 {
		t.Errorf("the next sync: %+v", synced)
	}
	w.mustBeSound(gadgets, next)
	w.mustBeSound(widgets, main)
	w.mustForget(widgets)
	for suffix, commit := range names {
		if suffix != "" {
			w.mustBeSound(gadgets+suffix, commit)
		}
	}
	w.mustBeSound(gadgets, next)
	w.mustVerifyAt(gadgets)
}

func mustShareFiles(t *testing.T, a, b, file string) {
	t.Helper()
	if !os.SameFile(testenv.Must(os.Stat(a+"/"+file))(t), testenv.Must(os.Stat(b+"/"+file))(t)) {
		t.Errorf("%s is no hard link", file)
	}
}

func TestMoveOfUnknownRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	if got := w.repos(); len(got) != 0 {
		t.Errorf("repositories: %v", got)
	}
}

func TestMoveOfUnpublishedRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	_, err := w.trySync("")
	testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	if at := w.plain(gadgets); at != (Located{}) {
		t.Errorf("at %+v, want it unpublished", at)
	}
	w.mustForget(widgets)
	commit := testenv.Must(w.git.Commit(t.Context(), gadgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "1"}}))(t)
	w.syncAt(gadgets, "")
	w.mustBeSound(gadgets, commit)
}

// A push to the new name may be synced before the move is processed.
func TestMoveToAlreadySyncedPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	v1 := w.commit("v1", gitserver.Edit{Write: map[string]string{"v": "1"}})
	w.sync("")
	w.sync("v1")
	w.rename(widgets, gadgets)
	newer := testenv.Must(w.git.Commit(t.Context(), gadgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	synced := w.syncAt(gadgets, "")

	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)

	if at := w.plain(gadgets); at.Name != synced.Path || at.Tree != synced.Tree {
		t.Errorf("got %+v, want %+v", at, synced)
	}
	w.mustBeSound(gadgets, newer)
	w.mustBeSound(gadgets+"@v1", v1)
	w.mustBeSound(widgets, commit)
	w.mustVerifyAt(gadgets)
	w.mustForget(widgets)
	w.syncAt(gadgets, "")
	w.mustBeSound(gadgets, newer)
	w.mustVerifyAt(gadgets)
}

func TestMoveThereAndBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "same": "same"})
	w.commit("gone", gitserver.Edit{Write: map[string]string{"g": "1"}})
	w.sync("")
	w.sync("gone")
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	next := testenv.Must(w.git.Commit(t.Context(), gadgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	w.syncAt(gadgets, "")
	testenv.Must(0, w.git.DeleteRef(t.Context(), gadgets, "refs/heads/gone"))(t)
	testenv.Must(w.volume.RemoveRef(t.Context(), RemoveRequest{Repo: repoPath(t, gadgets), Ref: testenv.Must(events.ParseRef("gone"))(t), Fence: w.fence.Add(1)}))(t)
	w.rename(gadgets, widgets)

	testenv.Must(0, w.volume.Move(t.Context(), w.moveBetween(gadgets, widgets)))(t)

	w.mustBeSound(widgets, next)
	w.mustBeSound(gadgets, next)
	w.mustVerifyAt(widgets)
	w.mustForget(gadgets)
	v := w.volume
	w.volume = w.open(v.Root(), Config{Grace: 1})
	for range 3 {
		w.gcAt(widgets)
	}
	if isThere(t, w.path(widgets+"@gone")) {
		t.Error("a ref came back that is gone")
	}
	w.volume = v
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	w.mustBeSound(gadgets, next)
	last := testenv.Must(w.git.Commit(t.Context(), gadgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "3"}}))(t)
	w.syncAt(gadgets, "")
	w.mustBeSound(gadgets, last)
	w.mustVerifyAt(gadgets)
}

func TestMoveToAnotherSpelling(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	res := w.sync("")
	w.rename(widgets, "acme/Widgets")
	req := w.moveBetween(widgets, "acme/Widgets")

	testenv.Must(0, w.volume.Move(t.Context(), req))(t)

	if at := w.plain("acme/Widgets"); at.Name != widgets || at.Tree != res.Tree {
		t.Errorf("got %+v, want %+v", at, res)
	}
	w.mustBeSound(widgets, commit)
	synced := w.syncAt("acme/Widgets", "")
	if synced.Path != widgets || synced.Published {
		t.Errorf("got %+v", synced)
	}
	_, err := w.trySync("")
	testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
}

func TestMoveOfSeveralStoresAndDepths(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	for _, n := range []string{"2", "3", "4"} {
		w.push(map[string]string{"a": n})
	}
	v1 := w.commit("v1", gitserver.Edit{Write: map[string]string{"v": "1"}})
	deep := w.request("")
	deep.Depth = events.DepthFull
	testenv.Must(w.volume.Sync(t.Context(), deep))(t)
	w.sync("v1")
	f := w.volume.folder(repoPath(t, widgets))
	testenv.Must(0, testenv.Must(f.currentStore(nil))(t).requestRefetch())(t)
	main := w.push(map[string]string{"a": "5"})
	w.sync("")
	if n := testenv.Must(f.generations())(t); len(n) != 2 {
		t.Fatalf("generations %v", n)
	}
	before := w.fetches(widgets)
	w.rename(widgets, gadgets)

	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)

	w.mustBeSound(gadgets, main)
	w.mustBeSound(gadgets+"@v1", v1)
	if got := w.gitIn(gadgets, "rev-list", "--count", "HEAD"); got != "5" {
		t.Errorf("%s commits of history", got)
	}
	w.mustVerifyAt(gadgets)
	w.mustForget(widgets)
	deep = w.requestAt(gadgets, "")
	deep.Depth = events.DepthFull
	testenv.Must(w.volume.Sync(t.Context(), deep))(t)
	if n := w.fetches(widgets, gadgets); n != before {
		t.Errorf("%d fetches more", n-before)
	}
	w.mustBeSound(gadgets, main)
	w.mustBeSound(gadgets+"@v1", v1)
}

func TestMoveSkipsDamagedTree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	v1 := w.commit("v1", gitserver.Edit{Write: map[string]string{"v": "1"}})
	res := w.sync("")
	w.sync("v1")
	testenv.Must(0, checkout.GitDirOf(w.path(res.Tree)).Unmake())(t)
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	if at := w.plain(gadgets); at != (Located{}) {
		t.Errorf("at %+v, want it without the damaged tree", at)
	}
	w.mustBeSound(gadgets+"@v1", v1)
	w.syncAt(gadgets, "")
	w.mustBeSound(gadgets, commit)
	w.mustVerifyAt(gadgets)
}

func TestPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	main := w.create(map[string]string{"a": "1"})
	v1 := w.commit("v1", gitserver.Edit{Write: map[string]string{"v": "1"}})
	if _, ok, err := w.volume.Published(repoPath(t, widgets)); ok || err != nil {
		t.Errorf("before the first sync: %v, %v", ok, err)
	}
	w.sync("")
	w.sync("v1")
	published, ok, err := w.volume.Published(repoPath(t, widgets))
	want := map[events.Ref]string{testenv.Must(events.ParseRef("main"))(t): main, testenv.Must(events.ParseRef("v1"))(t): v1}
	if err != nil || !ok || published.Remote != w.git.URL(widgets) || published.Plain.String() != "refs/heads/main" || !maps.Equal(published.Commits, want) {
		t.Errorf("got %+v, %v, %v", published, ok, err)
	}
}

func TestMoveAdoptsClone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.sync("")
	w.rename(widgets, gadgets)
	testenv.Must(0, os.MkdirAll(w.path("corp"), 0o755))(t)
	testenv.Must(gitserver.Git(t.Context(), t.TempDir(), "", "clone", "--quiet", w.git.URL(gadgets), w.path(gadgets)))(t)
	want := snapshot(t, w.path(gadgets))
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	w.mustBeSound(gadgets, commit)
	clones := testenv.Must(os.ReadDir(w.volume.folder(repoPath(t, gadgets)).adopted()))(t)
	if len(clones) != 1 {
		t.Fatalf("adopted %v", clones)
	}
	mustKeep(t, w.path(".lockstep/repos/corp/gadgets/adopted", clones[0].Name()), want)
}

// A sync under the old name may come between two attempts. Apps have its tree by then.
func TestRepeatedMovePublishesLaterSync(t *testing.T) {
	t.Parallel()
	w, main, v1 := newMoving(t)
	testenv.Must(0, w.git.Alias(widgets, gadgets))(t)
	req, failed := w.move(), errors.New("failed")
	req.Bring = func(context.Context) error { return failed }
	if err := w.volume.Move(t.Context(), req); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	w.mustBeSound(gadgets, main)
	newer := testenv.Must(w.git.Commit(t.Context(), gadgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	w.sync("")
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	w.mustBeSound(gadgets, newer)
	w.mustBeSound(gadgets+"@v1", v1)
	w.mustVerifyAt(gadgets)
}

// The watches that a stale holder would move may be those of another repository.
func TestStaleMoveBringsNothing(t *testing.T) {
	t.Parallel()
	for _, repo := range []string{widgets, gadgets} {
		t.Run(repo, func(t *testing.T) {
			t.Parallel()
			w, _, _ := newMoving(t)
			slow := w.open(w.volume.Root(), Config{})
			slow.cfg.Step = func(step string) {
				if step == "published" {
					w.gcAt(repo)
				}
			}
			req := w.move()
			req.Bring = func(context.Context) error { t.Error("it brought something"); return nil }
			testenv.MustFail(t, slow.Move(t.Context(), req), events.ClassBusy, events.Contention)
		})
	}
}

func TestMoveKeepsNameOfDefaultBranch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	v1 := w.commit("v1", gitserver.Edit{Write: map[string]string{"v": "1"}})
	w.sync("v1")
	testenv.Must(0, w.git.SetHead(widgets, "v1"))(t)
	w.sync("")
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	w.mustBeSound(gadgets, v1)
	w.mustBeSound(gadgets+"@v1", v1)
}

// The predecessor of a repaired store has the same commits, and may be damaged.
func TestMoveKeepsRepairedStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	testenv.Must(0, f.generation(1).requestRefetch())(t)
	commit := w.push(map[string]string{"a": "2"})
	w.sync("")
	main, second := testenv.Must(events.ParseRef("main"))(t), f.generation(2)
	testenv.Must(0, f.generation(1).hold(main, object.ParseID(commit), second.depth(), second.shallow()))(t)
	testenv.Must(0, os.RemoveAll(f.generation(1).dir+"/objects"))(t)
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	w.mustBeSound(gadgets, commit)
	w.mustVerifyAt(gadgets)
}

func TestMoveToTakenPathWithoutClone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	testenv.Must(w.git.Create(t.Context(), "other/repo", map[string]string{"other": "1"}))(t)
	req := w.requestAt(gadgets, "")
	req.URL = w.git.URL("other/repo")
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	w.create(map[string]string{"a": "1"})
	w.rename(widgets, gadgets)
	testenv.MustFail(t, w.volume.Move(t.Context(), w.move()), events.ClassConflict, events.Permanent)
}

// Only the proof that another repository is at the old path ends a repeated move.
func TestRepeatedMoveNeedsTheRemotes(t *testing.T) {
	t.Parallel()
	w, _, _ := newMoving(t)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	w.git.RequireAuth(gadgets, "ada", secret)
	testenv.MustFail(t, w.volume.Move(t.Context(), w.move()), events.ClassAuth, events.Permanent)
}

// A sync under the old name was not checked by the rules of the watches at the new one.
func TestMoveKeepsSyncedRefs(t *testing.T) {
	t.Parallel()
	w, main, v1 := newMoving(t)
	testenv.Must(0, w.git.Alias(widgets, gadgets))(t)
	w.syncAt(gadgets, "")
	testenv.Must(w.git.Commit(t.Context(), gadgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	w.sync("")
	req := w.move()
	req.ToSynced = true
	testenv.Must(0, w.volume.Move(t.Context(), req))(t)
	w.mustBeSound(gadgets, main)
	w.mustBeSound(gadgets+"@v1", v1)
}
