package schedule_test

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/redistest"
	"lockstep/internal/schedule"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// world has a clone of acme/widgets that was synced for a watch which has been removed.
type world struct {
	t      *testing.T
	git    *gitserver.Server
	client redis.UniversalClient
	r      schedule.Reconciler
	queued []events.Change
	own    watch.Watch // of acme/widgets, not in the registry
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx := context.Background()
	git, err := gitserver.Start(filepath.Join(t.TempDir(), "remote"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(git.Close)
	if _, err := git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}); err != nil {
		t.Fatal(err)
	}
	vol, err := volume.OpenVolume(t.TempDir(), volume.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, git: git, client: redistest.Start(t).Client()}
	if w.own, err = watch.New(watch.Watch{App: "docs", URL: git.URL("acme/widgets")}); err != nil {
		t.Fatal(err)
	}
	synced, err := vol.Sync(ctx, volume.SyncRequest{Repo: w.own.Repo, URL: w.own.URL, Fence: 1})
	if err != nil {
		t.Fatal(err)
	}
	result := events.Result{Repo: w.own.Repo, App: "docs", Ref: synced.Ref, After: synced.After, Fence: 1, Time: time.Now()}
	fields := state.Repo{}.SyncedFields(result, w.own.URL)
	w.set(fields)
	w.set(state.OriginFields(events.Change{Watched: true}, synced.Ref))
	w.r = schedule.Reconciler{
		Registry: watch.NewRegistry(w.client, events.DefaultNamespace), States: state.NewStore(w.client, events.DefaultNamespace),
		Volume: vol, Locks: locking.NewInspector(w.client, events.DefaultNamespace.Locks()), Source: "/test", Log: slog.New(slog.DiscardHandler),
		Publish: func(_ context.Context, change events.Change) error {
			w.queued = append(w.queued, change)
			return nil
		},
	}
	other, err := watch.New(watch.Watch{App: "docs", URL: git.URL("acme/other")}) // otherwise the registry would seem lost
	if err != nil {
		t.Fatal(err)
	}
	w.put(other)
	return w
}

func (w *world) set(fields map[string]string) {
	w.t.Helper()
	if err := w.client.HSet(context.Background(), events.DefaultNamespace.Repo(w.own.Repo), fields).Err(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) put(watches ...watch.Watch) {
	w.t.Helper()
	if _, err := watch.NewRegistry(w.client, events.DefaultNamespace).Put(context.Background(), watches...); err != nil {
		w.t.Fatal(err)
	}
}

// found runs the reconciler and returns its findings about acme/widgets and whether it queued a removal.
func (w *world) found() (kinds []schedule.Kind, removed bool) {
	w.t.Helper()
	report, err := w.r.Run(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range report.Findings {
		if f.Repo.Equal(w.own.Repo) {
			kinds = append(kinds, f.Kind)
		}
	}
	return kinds, slices.ContainsFunc(w.queued, func(c events.Change) bool { return c.Type == events.ChangeRemoved })
}

func TestOrphanIsRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if kinds, removed := w.found(); !slices.Equal(kinds, []schedule.Kind{schedule.Orphan}) || !removed {
		t.Errorf("found %v, removed %v", kinds, removed)
	}
}

func TestManyOrphansAreOnlyReported(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t)
	vol := w.r.Volume.(*volume.Volume)
	for i := range 10 { // in addition to acme/widgets; one repository is watched
		path := fmt.Sprintf("acme/more-%d", i)
		if _, err := w.git.Create(ctx, path, map[string]string{"a": "1"}); err != nil {
			t.Fatal(err)
		}
		repo, err := events.ParseRepoPath(path)
		if err != nil {
			t.Fatal(err)
		}
		synced, err := vol.Sync(ctx, volume.SyncRequest{Repo: repo, URL: w.git.URL(path), Fence: 1})
		if err != nil {
			t.Fatal(err)
		}
		fields := state.Repo{}.SyncedFields(events.Result{Repo: repo, App: "docs", Ref: synced.Ref, After: synced.After, Fence: 1, Time: time.Now()}, w.git.URL(path))
		maps.Copy(fields, state.OriginFields(events.Change{Watched: true}, synced.Ref))
		if err := w.client.HSet(ctx, events.DefaultNamespace.Repo(repo), fields).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if kinds, removed := w.found(); !slices.Equal(kinds, []schedule.Kind{schedule.Orphan}) || removed {
		t.Errorf("found %v, removed %v; want them only reported", kinds, removed)
	}
	w.r.Prune = true
	if _, removed := w.found(); !removed || len(w.queued) < 11 {
		t.Errorf("with Prune, %d changes were queued", len(w.queued))
	}
}

// late is a volume that calls then before it lists the repositories, which is after the registry has listed them.
type late struct {
	schedule.Volume
	then func()
}

func (l late) Repos() iter.Seq2[events.RepoPath, error] {
	l.then()
	return l.Volume.Repos()
}

func TestRepositoryWatchedAgainIsNotAnOrphan(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(w *world){
		"since the list was read": func(w *world) { w.put(w.own) },
		"but not in the index": func(w *world) {
			w.put(w.own)
			w.client.ZRem(context.Background(), events.DefaultNamespace.Watches()+"index", w.own.Repo.Key())
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.r.Volume = late{w.r.Volume, func() { then(w) }}
			if kinds, removed := w.found(); len(kinds) > 0 || removed {
				t.Errorf("found %v, removed %v; want it left alone", kinds, removed)
			}
		})
	}
}

// removing is a volume from which a worker has removed acme/widgets. It settles when Published is called.
type removing struct {
	schedule.Volume
	w       *world
	settled bool // false if the worker died before
	looks   int
}

func (r *removing) Published(repo events.RepoPath) (volume.Published, bool, error) {
	if !repo.Equal(r.w.own.Repo) {
		return r.Volume.Published(repo)
	}
	if r.looks++; r.looks == 2 && r.settled {
		r.w.client.Del(context.Background(), events.DefaultNamespace.Repo(repo))
		r.w.set(state.RemovedFields(events.Result{Repo: repo, Fence: 2}, "2-0"))
	}
	return volume.Published{}, false, nil
}

func TestConcurrentRemovalIsNotMissing(t *testing.T) {
	t.Parallel()
	for _, settled := range []bool{true, false} {
		w := newWorld(t)
		w.r.Volume = &removing{Volume: w.r.Volume, w: w, settled: settled}
		want := []schedule.Kind{schedule.Missing}
		if settled {
			want = nil
		}
		if kinds, _ := w.found(); !slices.Equal(kinds, want) {
			t.Errorf("settled %v: found %v, want %v", settled, kinds, want)
		}
	}
}

func TestBusyOrphanIsSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	locker, err := locking.New(locking.Config{Redis: w.client, Prefix: events.DefaultNamespace.Locks(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close(context.Background())
	lease, err := locker.Acquire(context.Background(), locking.Request{Key: w.own.Repo.Key(), Job: "j1"})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release(context.Background())
	if kinds, removed := w.found(); len(kinds) > 0 || removed {
		t.Errorf("found %v, removed %v; want it skipped", kinds, removed)
	}
}

// A repository with a watch that cannot be decoded is left alone; the others are checked.
func TestUndecodableWatchDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(watch.Watch{App: "docs", URL: w.git.URL("acme/any")})
	key := events.DefaultNamespace.Watches() + "of:acme/any"
	if err := w.client.HSet(context.Background(), key, "docs ", "{").Err(); err != nil {
		t.Fatal(err)
	}
	if kinds, removed := w.found(); !slices.Equal(kinds, []schedule.Kind{schedule.Orphan}) || !removed {
		t.Errorf("found %q, removal queued: %v", kinds, removed)
	}
	w.put(w.own) // its clone must stay, too
	own := events.DefaultNamespace.Watches() + "of:" + w.own.Repo.Key()
	if err := w.client.HSet(context.Background(), own, "docs ", "{").Err(); err != nil {
		t.Fatal(err)
	}
	w.queued = nil
	if kinds, removed := w.found(); len(kinds) > 0 || removed {
		t.Errorf("found %q, removal queued: %v", kinds, removed)
	}
}

// TestUnwatchedNameIsPolled has a ref that only a watch has requested, which is gone. What was requested by hand too stays.
func TestUnwatchedNameIsPolled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.own
	other.Ref = testenv.Must(watch.ParseSelector("dev"))(t)
	w.put(other)
	if kinds, removed := w.found(); !slices.Equal(kinds, []schedule.Kind{schedule.Drift}) || removed || w.queued[0].Type != events.ChangeDue {
		t.Errorf("found %v, queued %v; want a poll", kinds, w.queued)
	}
	main := testenv.Must(events.ParseRef("main"))(t)
	w.set(state.OriginFields(events.Change{}, main))
	if kinds, _ := w.found(); len(kinds) > 0 {
		t.Errorf("requested by hand: found %v", kinds)
	}
}
