package handlers_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
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
	repo, err := events.ParseRepoPath(text)
	must(t, err)
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
		"after the disk": func(w *world, move events.Change) {
			w.failWatches()
			if _, err := w.handle("2-0", move); !errors.Is(err, errDied) {
				w.t.Fatal(err)
			}
		},
		"after the registry": func(w *world, move events.Change) { w.handleUnsettled("2-0", move) },
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
			known, err := w.states.Load(context.Background(), move.To)
			must(t, err)
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
	if _, err := w.git.Create(context.Background(), "acme/widgets", map[string]string{"another": "1"}); err != nil {
		t.Fatal(err)
	}
	w.watch("scan", "")
	w.due("c-0")

	if r := w.mustHandle("4-0", move); r.Type != events.ResultPolled {
		t.Errorf("result %+v, want that of a poll", r)
	}
	w.mustBeWatched(w.repo(), 1)
	known, err := w.states.Load(context.Background(), w.repo())
	must(t, err)
	if !w.published() || known.Given("scan", mainRef(t)) == "" {
		t.Errorf("published %v, given %v; want it unchanged", w.published(), known.AllGiven())
	}
}

func TestDuplicateMoveKeepsManualSync(t *testing.T) {
	w := newWorld(t)
	move := w.renamed()
	w.mustHandle("2-0", move)
	w.create(map[string]string{"another": "1"})
	w.mustHandle("3-0", events.Change{URL: w.git.URL("acme/widgets")})
	w.mustHandle("4-0", move)
	must(t, w.git.Delete("acme/widgets"))
	w.mustHandle("5-0", move)
	if !w.published() {
		t.Error("the new repository is no longer published")
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

// The forge still redirects the old name, and a sync of the old name runs before the move is retried.
func TestMoveRemovesSyncUnderOldName(t *testing.T) {
	w := newWorld(t)
	move := w.renamed()
	must(t, w.git.Alias("acme/widgets", "acme/gadgets"))
	w.failWatches()
	if _, err := w.handle("2-0", move); !errors.Is(err, errDied) {
		t.Fatal(err)
	}
	w.due("b-0")
	if !w.published() {
		t.Fatal("it was not synced under its old name")
	}
	r := w.mustHandle("2-0", move)
	if r.Type != events.ResultMoved || r.Path != "acme/gadgets" {
		t.Errorf("result %+v", r)
	}
	w.mustBeWatched(w.repo(), 0)
	w.mustBeWatched(move.To, 1)
	if got := requested(w.next); got != "removed" {
		t.Errorf("requested %q, want a removal", got)
	}
	for i, change := range w.next {
		w.mustHandle("5-"+string(rune('0'+i)), change)
	}
	if w.published() {
		t.Error("the sync under the old name is still published")
	}
}

func TestMoveCompletesAfterFailedSyncUnderOldName(t *testing.T) {
	w := newWorld(t)
	move := w.renamed()
	w.failWatches()
	if _, err := w.handle("2-0", move); !errors.Is(err, errDied) {
		t.Fatal(err)
	}
	if _, err := w.handle("3-0", events.Change{URL: w.git.URL("acme/widgets")}); events.ClassOf(err) != events.ClassNotFound {
		t.Fatalf("a sync under the old name: %v, want not found", err)
	}
	r := w.mustHandle("2-0", move)
	if r.Type != events.ResultMoved || r.Path != "acme/gadgets" {
		t.Errorf("result %+v", r)
	}
	w.mustBeWatched(w.repo(), 0)
	w.mustBeWatched(move.To, 1)
	rest := w.next
	for i, change := range rest {
		w.mustHandle("5-"+string(rune('0'+i)), change)
	}
	if _, there, err := w.handlers.Volume.Published(w.repo()); there || err != nil {
		t.Errorf("at the old path %v, error %v; want nothing left", there, err)
	}
	w.create(map[string]string{"another": "1"})
	w.mustHandle("6-0", events.Change{URL: w.git.URL("acme/widgets")})
	for i, change := range rest { // a duplicate
		if _, err := w.handle("7-"+string(rune('0'+i)), change); events.ClassOf(err) != events.ClassConflict || !w.published() {
			t.Errorf("error %v, published %v; want it kept", err, w.published())
		}
	}
}

func TestDuplicateMoveKeepsUnpublishedClone(t *testing.T) {
	w := newWorld(t)
	move := w.renamed()
	w.mustHandle("2-0", move)
	w.create(map[string]string{"another": "1"})
	w.mustHandle("3-0", events.Change{URL: w.git.URL("acme/widgets")})
	w.mustHandle("4-0", events.Change{Type: events.ChangeRemoved, Repo: w.repo(), Ref: mainRef(t), Force: true})
	must(t, w.git.Delete("acme/widgets"))
	w.mustHandle("5-0", move)
	if _, there, err := w.handlers.Volume.Published(w.repo()); !there || err != nil {
		t.Errorf("at the old path %v, error %v; want it kept", there, err)
	}
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
	if _, err := w.git.Create(context.Background(), "acme/gadgets", map[string]string{"a": "1"}); err != nil {
		t.Fatal(err)
	}
	move := events.Change{Type: events.ChangeMoved, Repo: w.repo(), To: path(t, "acme/gadgets"), URL: w.git.URL("acme/gadgets")}
	if r := w.mustHandle("1-0", move); r.Type != events.ResultMoved || r.Path != "" {
		t.Errorf("result %+v", r)
	}
	known, err := w.states.Load(context.Background(), move.To)
	must(t, err)
	if !known.IsZero() {
		t.Errorf("known of the new path: %+v", known)
	}
}

func TestMoveOfCustomPathRebindsRemote(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	mirror := path(t, "mirror/w")
	w.watchAs(watch.Watch{App: "docs", Repo: mirror, URL: w.git.URL("acme/widgets")}, "")
	poll := events.Change{Type: events.ChangeDue, Repo: mirror}
	w.mustHandle("1-0", poll)
	for _, change := range w.next {
		w.mustHandle("2-0", change)
	}
	must(t, w.git.Rename("acme/widgets", "acme/gadgets"))
	move := events.Change{Type: events.ChangeMoved, Repo: mirror, To: mirror, URL: w.git.URL("acme/gadgets")}
	for range 2 {
		if r := w.mustHandle("3-0", move); r.Type != events.ResultMoved || r.Path != "mirror/w" {
			t.Errorf("result %+v", r)
		}
	}
	w.mustHandle("4-0", poll)
	if got := requested(w.next); got != "" {
		t.Errorf("requested %q, want nothing: docs has %s", got, first)
	}
	known, err := w.states.Load(context.Background(), mirror)
	must(t, err)
	if known.Remote() != move.URL || known.Given("docs", mainRef(t)) != first {
		t.Errorf("remote %q, given %v", known.Remote(), known.AllGiven())
	}
}

// Existing fields at the new path stay, except the fence.
func TestMoveStoresFence(t *testing.T) {
	w := newWorld(t)
	move := w.renamed()
	must(t, w.redis.HSet(context.Background(), events.DefaultNamespace.Repo(move.To), "fence", "1", "other", "2").Err())
	w.mustHandle("2-0", move)
	fields, err := w.redis.HGetAll(context.Background(), events.DefaultNamespace.Repo(move.To)).Result()
	must(t, err)
	if fields["fence"] == "1" || fields["other"] != "2" {
		t.Errorf("known of the new path: %v", fields)
	}
}
