package access_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/gitserver"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// world is a volume with repositories, and what apps watch and have received of them.
type world struct {
	*testing.T
	git    *gitserver.Server
	vol    *volume.Volume
	redis  redis.UniversalClient
	watch  *watch.Registry
	states *state.Store
	reader *access.Reader
	fence  uint64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	git := testenv.Must(gitserver.Start(filepath.Join(t.TempDir(), "remote")))(t)
	t.Cleanup(git.Close)
	w := &world{T: t, git: git, redis: redistest.Start(t).Client(), fence: 100}
	w.vol = testenv.Must(volume.OpenVolume(t.TempDir(), volume.Config{}))(t)
	t.Cleanup(w.vol.Close)
	w.watch, w.states = watch.NewRegistry(w.redis, events.DefaultNamespace), state.NewStore(w.redis, events.DefaultNamespace)
	w.reader = &access.Reader{Watches: w.watch, States: w.states, Volume: func(context.Context) (*volume.Volume, error) {
		return volume.ViewVolume(w.vol.Root())
	}}
	return w
}

func (w *world) repo(path string) events.RepoPath {
	w.Helper()
	return testenv.Must(events.ParseRepoPath(path))(w.T)
}

func ref(t *testing.T, name string) events.Ref {
	t.Helper()
	return testenv.Must(events.ParseRef(name))(t)
}

func (w *world) create(path string) (commit string) {
	w.Helper()
	return testenv.Must(w.git.Create(w.Context(), path, map[string]string{"README": path}))(w.T)
}

func (w *world) push(path, branch, content string) (commit string) {
	w.Helper()
	return testenv.Must(w.git.Commit(w.Context(), path, branch, gitserver.Edit{Write: map[string]string{"README": content}}))(w.T)
}

// sync publishes a ref, and records it as given to apps.
func (w *world) sync(path, name string, apps ...string) {
	w.Helper()
	w.fence++
	of := events.Ref{}
	if name != "" {
		of = ref(w.T, name)
	}
	repo := w.repo(path)
	synced, err := w.vol.Sync(w.Context(), volume.SyncRequest{
		Repo: repo, URL: w.git.URL(path), Ref: of, Fence: w.fence, Base: func(events.Ref, volume.Publication) volume.Base { return volume.Base{} },
		Confirm: func(context.Context) error { return nil },
	})
	if err != nil {
		w.Fatal(err)
	}
	for _, app := range append(apps, "") {
		fields := state.Repo{}.SyncedFields(events.Result{Repo: repo, Ref: synced.Ref, App: app, After: synced.After, Fence: w.fence}, w.git.URL(path))
		w.must(w.redis.HSet(w.Context(), events.DefaultNamespace.Repo(repo), fields).Err())
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) watches(app, path, refs string, edit ...func(*watch.Watch)) {
	w.Helper()
	one := watch.Watch{App: app, URL: w.git.URL(path), Repo: w.repo(path), Ref: testenv.Must(watch.ParseSelector(refs))(w.T)}
	for _, e := range edit {
		e(&one)
	}
	testenv.Must(w.watch.Put(w.Context(), one))(w.T)
}

// sees returns the refs and commits that an app may read, "" if it gets ErrNotFound.
func (w *world) sees(who access.Identity, path string) string {
	w.Helper()
	visible, err := w.reader.Visible(w.Context(), who, w.repo(path))
	if errors.Is(err, access.ErrNotFound) && len(visible.Refs) == 0 {
		return ""
	}
	w.must(err)
	var refs []string
	for _, r := range visible.Refs {
		refs = append(refs, r.Ref.String()+" "+r.Commit)
	}
	return strings.Join(refs, ", ")
}

var (
	docs, scan = access.Identity{App: "docs"}, access.Identity{App: "scan"}
	operator   = access.Identity{Operator: true}
)

func TestAppSeesWhatItWatchesAtTheCommitItWasGiven(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create("acme/widgets")
	secret := w.create("acme/secret")
	w.must(w.git.SetRef(t.Context(), "acme/widgets", "refs/heads/dev", first))
	w.must(w.git.Tag(t.Context(), "acme/widgets", "v1", first))
	w.watches("docs", "acme/widgets", "")
	w.watches("scan", "acme/widgets", "refs/tags/v*")
	w.watches("scan", "acme/secret", "")
	if got := w.sees(docs, "acme/widgets"); got != "" {
		t.Errorf("before the first sync: %q", got)
	}
	w.sync("acme/widgets", "", "docs")
	w.sync("acme/widgets", "dev")
	w.sync("acme/widgets", "refs/tags/v1", "scan")
	w.sync("acme/secret", "", "scan")
	second := w.push("acme/widgets", gitserver.Main, "2")
	w.sync("acme/widgets", "") // for nobody yet

	for _, tc := range []struct {
		name string
		who  access.Identity
		repo string
		want string
	}{
		{"the default branch", docs, "acme/widgets", "refs/heads/main " + first},
		{"in another case", docs, "ACME/Widgets", "refs/heads/main " + first},
		{"a pattern", scan, "acme/widgets", "refs/tags/v1 " + first},
		{"another repository", scan, "acme/secret", "refs/heads/main " + secret},
		{"not watched", docs, "acme/secret", ""},
		{"not there", docs, "acme/nothing", ""},
		{"below a watched one", docs, "acme/widgets/sub", ""},
		{"another app", access.Identity{App: "doc"}, "acme/widgets", ""},
		{"a pattern as app", access.Identity{App: "*"}, "acme/widgets", "error"},
		{"nobody", access.Identity{}, "acme/widgets", ""},
		{"the operator", operator, "acme/widgets", "refs/heads/dev " + first + ", refs/heads/main " + second + ", refs/tags/v1 " + first},
		{"the operator, not there", operator, "acme/nothing", ""},
	} {
		if tc.want == "error" {
			if _, err := w.reader.Visible(t.Context(), tc.who, w.repo(tc.repo)); err == nil {
				t.Errorf("%s: no error", tc.name)
			}
			continue
		}
		if got := w.sees(tc.who, tc.repo); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// TestVolumeIsNotReadForAnAppWithoutCommits has an app that watches what was published for another one only.
func TestVolumeIsNotReadForAnAppWithoutCommits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create("acme/widgets")
	w.watches("docs", "acme/widgets", "")
	w.watches("scan", "acme/widgets", "")
	w.sync("acme/widgets", "", "scan")
	reads := 0
	w.reader.Volume = func(context.Context) (*volume.Volume, error) {
		reads++
		return volume.ViewVolume(w.vol.Root())
	}
	if got := w.sees(docs, "acme/widgets"); got != "" || reads != 0 {
		t.Errorf("%q, and the volume was read %d times", got, reads)
	}
	if got := w.sees(scan, "acme/widgets"); got == "" || reads == 0 {
		t.Errorf("the app with a commit: %q, and the volume was read %d times", got, reads)
	}
}

func TestRefusedAppSeesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create("acme/widgets")
	w.watches("docs", "acme/widgets", "", func(w *watch.Watch) { w.Credential = "bot" })
	w.watches("docs", "acme/widgets", "dev", func(w *watch.Watch) { w.Credential = "other" })
	w.watches("scan", "acme/widgets", "", func(w *watch.Watch) { w.Credential = "bot" })
	w.must(w.git.SetRef(t.Context(), "acme/widgets", "refs/heads/dev", commit))
	w.sync("acme/widgets", "", "docs", "scan")
	w.sync("acme/widgets", "dev", "docs")
	main, dev := "refs/heads/main "+commit, "refs/heads/dev "+commit
	if got := w.sees(docs, "acme/widgets"); got != dev+", "+main {
		t.Errorf("at first %q", got)
	}
	w.must(w.redis.HSet(t.Context(), events.DefaultNamespace.Repo(w.repo("acme/widgets")), "trouble", testenv.Refused("bot:docs")).Err())
	if got := w.sees(docs, "acme/widgets"); got != dev {
		t.Errorf("refused: %q, want what another credential may read", got)
	}
	if got := w.sees(scan, "acme/widgets"); got != main {
		t.Errorf("the other app sees %q", got)
	}
	w.must(w.redis.HSet(t.Context(), events.DefaultNamespace.Repo(w.repo("acme/widgets")), "trouble", testenv.Refused("bot:docs", "other:docs")).Err())
	if got := w.sees(docs, "acme/widgets"); got != "" {
		t.Errorf("both refused: %q", got)
	}
}

func TestOpenedTreeIsThatOfTheGivenCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create("acme/widgets")
	w.watches("docs", "acme/widgets", "")
	w.sync("acme/widgets", "", "docs")
	second := w.push("acme/widgets", gitserver.Main, "2")
	w.sync("acme/widgets", "")
	visible := testenv.Must(w.reader.Visible(t.Context(), docs, w.repo("acme/widgets")))(t)
	main := testenv.Must(visible.Find(events.Ref{}))(t)
	if at, err := visible.At(first); err != nil || at.Ref != main.Ref || main.Commit != first {
		t.Errorf("%+v, %v", main, err)
	}
	opened := testenv.Must(w.reader.Open(t.Context(), visible, main))(t)
	defer opened.Close()
	if opened.Commit() != first {
		t.Errorf("opened %s, want the replaced tree of %s", opened.Commit(), first)
	}
	if _, err := visible.Find(ref(t, "dev")); !errors.Is(err, access.ErrNotFound) {
		t.Errorf("a ref that is not there: %v", err)
	}
	if _, err := visible.At(second); !errors.Is(err, access.ErrNotFound) {
		t.Errorf("a commit that was not given: %v", err)
	}
	main.Commit = strings.Repeat("a", 40)
	if _, err := w.reader.Open(t.Context(), visible, main); !errors.Is(err, access.ErrReplaced) {
		t.Errorf("a tree that is gone: %v", err)
	}
}

// TestUnconfirmedRefusalTakesNothing has the remote refuse the credential of an app.
func TestUnconfirmedRefusalTakesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create("acme/widgets")
	w.watches("docs", "acme/widgets", "", func(w *watch.Watch) { w.Credential = "bot" })
	w.sync("acme/widgets", "", "docs")
	repo := w.repo("acme/widgets")
	result := events.Result{Type: events.ResultSynced, App: "docs", Repo: repo, Ref: ref(t, "main"), Before: "a", After: commit, Path: "acme/widgets"}
	for next, reads := range map[string]bool{`,"next":"2026-01-01T00:00:00Z"`: true, "": false} {
		trouble := `{"all":{"credential:bot:docs":{"scope":"credential"` + next + `}}}`
		w.must(w.redis.HSet(t.Context(), events.DefaultNamespace.Repo(repo), "trouble", trouble).Err())
		audiences := testenv.Must(w.reader.Audiences(t.Context(), []events.Result{result}, func(_ events.Result, err error) { t.Error(err) }))(t)
		if sees := w.sees(docs, "acme/widgets"); (sees != "") != reads || audiences[0].Has("docs") != reads {
			t.Errorf("%s: it sees %q, and its results go to %q; want it to read them: %v", trouble, sees, audiences[0], reads)
		}
	}
}
