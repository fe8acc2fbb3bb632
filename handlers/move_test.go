package handlers_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// renamed syncs acme/widgets for docs, renames it to acme/gadgets on the server, and returns the move.
func (w *world) renamed() events.Change {
	w.t.Helper()
	w.create(map[string]string{"a": "1"})
	w.watch("docs", "")
	w.due("a-0")
	must(w.t, w.git.Rename("acme/widgets", "acme/gadgets"))
	return events.Change{Type: events.ChangeMoved, Repo: w.repo(), To: path(w.t, "acme/gadgets"), URL: w.git.URL("acme/gadgets")}
}

func path(t *testing.T, text string) events.RepoPath {
	t.Helper()
	repo := testenv.Must(events.ParseRepoPath(text))(t)
	return repo
}

func (w *world) mustBeWatched(repo events.RepoPath, want int) {
	w.t.Helper()
	set, err := w.watches.Of(context.Background(), repo)
	if err != nil || len(set.Watches) != want {
		w.t.Errorf("%s has watches %+v, error %v; want %d", repo, set.Watches, err, want)
	}
}

var errDied = errors.New("died")

// failingScript fails the first script of a client, as if the worker had died.
type failingScript struct{ failed atomic.Bool }

func (f *failingScript) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *failingScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f *failingScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !strings.HasPrefix(cmd.Name(), "eval") || f.failed.Swap(true) {
			return next(ctx, cmd)
		}
		cmd.SetErr(errDied)
		return errDied
	}
}

// failWatches makes the next write of the handlers to the registry fail.
func (w *world) failWatches() {
	client := w.server.Client()
	client.AddHook(&failingScript{})
	w.handlers.Watches = watch.NewRegistry(client, events.DefaultNamespace)
}

func TestInterruptedMoveIsCompleted(t *testing.T) {
	for name, interrupt := range map[string]func(w *world, move events.Change){
		"before the registry": func(w *world, move events.Change) {
			w.failWatches()
			if _, err := w.handle("2-0", move); !errors.Is(err, errDied) {
				w.t.Fatal(err)
			}
		},
		"before it settles": func(w *world, move events.Change) { w.handleUnsettled("2-0", move) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			move := w.renamed()
			interrupt(w, move)
			r := w.mustHandle("2-0", move)
			if r.Type != events.ResultMoved || r.Path != "acme/gadgets" {
				t.Errorf("result %+v", r)
			}
			w.mustBeWatched(w.repo(), 0)
			w.mustBeWatched(move.To, 1)
			known := testenv.Must(w.states.Load(context.Background(), move.To))(t)
			if known.Given("docs", mainRef(t)) == "" || known.Fence() != r.Fence {
				t.Errorf("known of the new path: given %v, fence %d", known.AllGiven(), known.Fence())
			}
		})
	}
}

func TestDuplicateMoveKeepsNewRepository(t *testing.T) {
	w := newWorld(t)
	move := w.renamed()
	w.mustHandle("2-0", move)
	testenv.Must(w.git.Create(context.Background(), "acme/widgets", map[string]string{"another": "1"}))(t)
	w.watch("scan", "")
	w.due("c-0")

	if r := w.mustHandle("4-0", move); r.Type != events.ResultPolled {
		t.Errorf("result %+v, want that of a poll", r)
	}
	w.mustBeWatched(w.repo(), 1)
	known := testenv.Must(w.states.Load(context.Background(), w.repo()))(t)
	if !w.published() || known.Given("scan", mainRef(t)) == "" {
		t.Errorf("published %v, given %v; want it unchanged", w.published(), known.AllGiven())
	}
}

func TestDuplicateMoveKeepsClone(t *testing.T) {
	for name, published := range map[string]bool{"published": true, "not published": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			move := w.renamed()
			w.mustHandle("2-0", move)
			w.create(map[string]string{"another": "1"})
			w.mustHandle("3-0", events.Change{URL: w.git.URL("acme/widgets")})
			w.mustHandle("4-0", move)
			if !published {
				w.mustHandle("5-0", events.Change{Type: events.ChangeRemoved, Repo: w.repo(), Ref: mainRef(t), Force: true})
			}
			must(t, w.git.Delete("acme/widgets"))
			w.mustHandle("6-0", move)
			if _, there, err := w.handlers.Volume.Published(w.repo()); !there || err != nil || w.published() != published {
				t.Errorf("at the old path %v, published %v, error %v; want it kept", there, w.published(), err)
			}
		})
	}
}

// A repository that is watched, but not cloned yet, keeps its watches: nothing on the volume or at the remote tells it from
// the one that has moved away.
func TestDuplicateMoveKeepsNewWatches(t *testing.T) {
	for name, prepare := range map[string]func(w *world, move events.Change){
		"not cloned yet": func(w *world, _ events.Change) { w.create(map[string]string{"another": "1"}) },
		"not visible":    func(*world, events.Change) {},
		"a copy": func(w *world, move events.Change) {
			must(w.t, w.git.Alias("acme/widgets", "acme/gadgets")) // has the same refs
		},
		"after a move there and back": func(w *world, move events.Change) {
			w.mustHandle("3-0", events.Change{Type: events.ChangeMoved, Repo: move.To, To: move.Repo, URL: w.back()})
			must(w.t, w.git.Rename("acme/widgets", "acme/gadgets"))
			w.mustHandle("3-1", move)
			w.mustBeWatched(move.To, 1)
		},
		"after a repository in between": func(w *world, move events.Change) {
			w.create(map[string]string{"between": "1"})
			w.mustHandle("3-0", events.Change{URL: w.git.URL("acme/widgets")})
			w.mustHandle("3-1", events.Change{Type: events.ChangeRemoved, Repo: w.repo(), Force: true})
			must(w.t, w.git.Delete("acme/widgets"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			move := w.renamed()
			w.mustHandle("2-0", move)
			prepare(w, move)
			w.watch("scan", "")
			for _, entry := range []string{"4-0", "5-0"} {
				w.mustHandle(entry, move)
			}
			w.mustBeWatched(w.repo(), 1)
			w.mustBeWatched(move.To, 1)
		})
	}
}

// Another repository may take the same way once the first has left the new path.
func TestSameMoveOfAnotherRepository(t *testing.T) {
	w := newWorld(t)
	move := w.renamed()
	w.mustHandle("2-0", move)
	w.unwatch(watch.Watch{App: "docs", Repo: move.To, URL: move.URL})
	must(t, w.git.Delete("acme/gadgets"))
	w.mustHandle("3-0", events.Change{Type: events.ChangeRemoved, Repo: move.To, Force: true})
	w.create(map[string]string{"another": "1"})
	w.watch("scan", "")
	w.due("c-0")
	must(t, w.git.Rename("acme/widgets", "acme/gadgets"))
	if r := w.mustHandle("5-0", move); r.Type != events.ResultMoved || r.Path != "acme/gadgets" {
		t.Errorf("result %+v", r)
	}
	w.mustBeWatched(w.repo(), 0)
	w.mustBeWatched(move.To, 1)
}

// back renames acme/gadgets to acme/widgets on the server and returns its URL.
func (w *world) back() string {
	w.t.Helper()
	must(w.t, w.git.Rename("acme/gadgets", "acme/widgets"))
	return w.git.URL("acme/widgets")
}

// A sync under the old name runs before a move whose worker died is retried: the forge still redirects there, or not.
func TestSyncUnderOldNameBeforeMoveIsCompleted(t *testing.T) {
	for name, redirects := range map[string]bool{"redirected": true, "not found": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			move := w.renamed()
			if redirects {
				must(t, w.git.Alias("acme/widgets", "acme/gadgets"))
			}
			w.failWatches()
			if _, err := w.handle("2-0", move); !errors.Is(err, errDied) {
				t.Fatal(err)
			}
			_, err := w.handle("3-0", events.Change{URL: w.git.URL("acme/widgets")})
			if redirects && err != nil || !redirects && events.ClassOf(err) != events.ClassNotFound || !w.published() {
				t.Fatalf("a sync under the old name: %v, published %v", err, w.published())
			}
			r := w.mustHandle("2-0", move)
			if r.Type != events.ResultMoved || r.Path != "acme/gadgets" {
				t.Errorf("result %+v", r)
			}
			w.mustBeWatched(w.repo(), 0)
			w.mustBeWatched(move.To, 1)
			if _, there, err := w.handlers.Volume.Published(w.repo()); there || err != nil {
				t.Errorf("at the old path %v, error %v; want nothing left", there, err)
			}
		})
	}
}

// The worker dies when the old path is free, and another repository is synced and watched there. It stays.
func TestNewRepositoryBeforeMoveIsCompleted(t *testing.T) {
	w := newWorld(t)
	move := w.renamed()
	w.handleUnsettled("2-0", move)
	another := w.create(map[string]string{"another": "1"})
	w.watch("scan", "")
	w.due("c-0")
	if r := w.mustHandle("2-0", move); r.Type != events.ResultMoved || r.Path != "acme/gadgets" {
		t.Errorf("result %+v", r)
	}
	w.mustBeWatched(w.repo(), 1)
	w.mustBeWatched(move.To, 1)
	published, _, err := w.handlers.Volume.Published(w.repo())
	if err != nil || published.Commits[mainRef(t)] != another {
		t.Errorf("at the old path %v, error %v; want %s", published.Commits, err, another)
	}
	known := testenv.Must(w.states.Load(context.Background(), w.repo()))(t)
	if known.Given("scan", mainRef(t)) != another {
		t.Errorf("given %v, want scan to have %s", known.AllGiven(), another)
	}
	there := testenv.Must(w.states.Load(context.Background(), move.To))(t)
	if there.Given("scan", mainRef(t)) != "" {
		t.Errorf("at the new path, %v were given", there.AllGiven())
	}
}

// The worker dies after the clone has moved, and Redis returns without the new watches.
func TestLostWatchesAreMovedAgain(t *testing.T) {
	for name, another := range map[string]bool{"of the moved one": false, "of another one": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			move := w.renamed()
			w.handleUnsettled("2-0", move)
			w.unwatch(watch.Watch{App: "docs", Repo: move.To, URL: move.URL})
			if another {
				w.create(map[string]string{"another": "1"})
			}
			w.watch("docs", "")
			if r := w.mustHandle("2-0", move); r.Type != events.ResultMoved {
				t.Errorf("result %+v", r)
			}
			left := 0
			if another {
				left = 1
			}
			w.mustBeWatched(w.repo(), left)
			w.mustBeWatched(move.To, 1-left)
		})
	}
}

func TestMoveKeepsWatchesOfAnotherRemote(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.mustHandle("1-0", events.Change{URL: w.git.URL("acme/widgets")})
	w.watchAs(watch.Watch{App: "scan", Repo: w.repo(), URL: w.git.URL("other/widgets")}, "")
	must(t, w.git.Rename("acme/widgets", "acme/gadgets"))
	w.mustHandle("2-0", events.Change{Type: events.ChangeMoved, Repo: w.repo(), To: path(t, "acme/gadgets"), URL: w.git.URL("acme/gadgets")})
	w.mustBeWatched(w.repo(), 1)
}

// The conflict in the registry is found before anything moves.
func TestMoveToPathWatchedAtAnotherRemote(t *testing.T) {
	w := newWorld(t)
	move := w.renamed()
	w.watchAs(watch.Watch{App: "scan", Repo: move.To, URL: "https://example.com/other/gadgets.git"}, "")
	if _, err := w.handle("2-0", move); events.ClassOf(err) != events.ClassConflict {
		t.Errorf("error %v, want a conflict", err)
	}
	if _, there, err := w.handlers.Volume.Published(move.To); there || err != nil || !w.published() {
		t.Errorf("at the new path %v, at the old one %v, error %v; want the clone at the old path", there, w.published(), err)
	}
	w.mustBeWatched(w.repo(), 1)
}

// The move writes a tombstone and nothing else.
func TestMoveOfUnknownRepository(t *testing.T) {
	w := newWorld(t)
	testenv.Must(w.git.Create(context.Background(), "acme/gadgets", map[string]string{"a": "1"}))(t)
	move := events.Change{Type: events.ChangeMoved, Repo: w.repo(), To: path(t, "acme/gadgets"), URL: w.git.URL("acme/gadgets")}
	if r := w.mustHandle("1-0", move); r.Type != events.ResultMoved || r.Path != "" {
		t.Errorf("result %+v", r)
	}
	known := testenv.Must(w.states.Load(context.Background(), move.To))(t)
	if !known.IsZero() {
		t.Errorf("known of the new path: %+v", known)
	}
}

// Existing fields at the new path stay, except the fence.
func TestMoveStoresFence(t *testing.T) {
	w := newWorld(t)
	move := w.renamed()
	must(t, w.redis.HSet(context.Background(), events.DefaultNamespace.Repo(move.To), "fence", "1", "other", "2").Err())
	w.mustHandle("2-0", move)
	fields := testenv.Must(w.redis.HGetAll(context.Background(), events.DefaultNamespace.Repo(move.To)).Result())(t)
	if fields["fence"] == "1" || fields["other"] != "2" {
		t.Errorf("known of the new path: %v", fields)
	}
}

// Redis returns with older data after a settled move, and the old path is cloned again through the forge's redirect.
func TestLostMoveIsMadeAgain(t *testing.T) {
	w := newWorld(t)
	move := w.renamed()
	w.handleUnsettled("2-0", move)
	w.unwatch(watch.Watch{App: "docs", Repo: move.To, URL: move.URL})
	must(t, w.git.Alias("acme/widgets", "acme/gadgets"))
	w.watch("docs", "")
	w.mustHandle("3-0", events.Change{URL: w.git.URL("acme/widgets")})
	if r := w.mustHandle("4-0", move); r.Type != events.ResultMoved || r.Path != "acme/gadgets" {
		t.Errorf("result %+v", r)
	}
	w.mustBeWatched(w.repo(), 0)
	w.mustBeWatched(move.To, 1)
	if _, here, err := w.handlers.Volume.Published(w.repo()); here || err != nil {
		t.Errorf("at the old path %v, error %v; want nothing left", here, err)
	}
}

// The worker dies when the old path is free, and a sync there binds it, but finds nothing at the remote.
func TestFailedSyncBeforeMoveIsCompleted(t *testing.T) {
	w := newWorld(t)
	move := w.renamed()
	w.handleUnsettled("2-0", move)
	if _, err := w.handle("3-0", events.Change{URL: w.git.URL("acme/widgets")}); events.ClassOf(err) != events.ClassNotFound {
		t.Fatal(err)
	}
	w.mustHandle("2-0", move)
	known := testenv.Must(w.states.Load(context.Background(), move.To))(t)
	if known.Given("docs", mainRef(t)) == "" {
		t.Errorf("given %v", known.AllGiven())
	}
}

// What the credential of a hint cannot see is no proof: the credentials of the watches can.
func TestMoveHintWithoutAccess(t *testing.T) {
	for name, credential := range map[string]string{"no credential": "", "for other URLs": "gadgets"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(map[string]string{"a": "1"})
			w.git.RequireAuth("acme/widgets", "bot", "secret")
			w.credential("widgets", "secret", "acme/widgets.git")
			w.credential("gadgets", "secret", "acme/gadgets.git")
			w.watchAs(watch.Watch{App: "docs", URL: w.git.URL("acme/widgets"), Credential: "widgets"}, "")
			w.due("a-0")
			must(t, os.CopyFS(w.git.Dir("acme/gadgets"), os.DirFS(w.git.Dir("acme/widgets")))) // a fork
			_, err := w.git.Commit(context.Background(), "acme/gadgets", "dev", gitserver.Edit{Write: map[string]string{"a": "2"}})
			must(t, err)
			move := events.Change{
				Type: events.ChangeMoved, Repo: w.repo(), To: path(t, "acme/gadgets"), URL: w.git.URL("acme/gadgets"), Credential: credential,
			}
			if _, err := w.handle("2-0", move); err == nil {
				t.Error("it was moved")
			}
			w.mustBeWatched(w.repo(), 1)
		})
	}
}

// TestMoveDespiteARefusedCredential renames a repository that one of its two apps may no longer read, and pushes to it.
func TestMoveDespiteARefusedCredential(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	for _, repo := range []string{"acme/widgets", "acme/gadgets"} {
		w.git.RequireAuth(repo, "bot", "secret")
	}
	w.credential("one", "secret", "acme/widgets.git", "acme/gadgets.git")
	w.credential("two", "revoked", "acme/widgets.git", "acme/gadgets.git")
	w.watchAs(watch.Watch{App: "docs", URL: w.git.URL("acme/widgets"), Credential: "one"}, "")
	w.due("a-0")
	w.watchAs(watch.Watch{App: "search", URL: w.git.URL("acme/widgets"), Credential: "two"}, "")
	must(t, w.git.Rename("acme/widgets", "acme/gadgets"))
	must(t, w.git.Alias("acme/widgets", "acme/gadgets"))
	_, err := w.git.Commit(context.Background(), "acme/gadgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}})
	must(t, err)
	r := w.mustHandle("2-0", events.Change{
		Type: events.ChangeMoved, Repo: w.repo(), To: path(t, "acme/gadgets"), URL: w.git.URL("acme/gadgets"), Credential: "one",
	})
	if r.Type != events.ResultMoved {
		t.Errorf("%+v", r)
	}
	w.mustBeWatched(path(t, "acme/gadgets"), 2)
}
