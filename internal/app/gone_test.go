package app

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/config"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/locking"
	"lockstep/tree"
)

// goneWorld is a deployment with a worker whose own garbage collections are an hour away.
type goneWorld struct {
	*testing.T
	git      *gitserver.Server
	client   redis.UniversalClient
	root     string
	registry *watch.Registry
	gc       gc
	stop     func() // ends the worker
	pinned   *tree.Tree
}

func newGoneWorld(t *testing.T) *goneWorld {
	t.Parallel()
	server := redistest.Start(t)
	w := &goneWorld{T: t, git: proctest.StartGit(t), client: server.Client(), root: t.TempDir()}
	proctest.Must(w.git.Create(t.Context(), "acme/stays", map[string]string{"a": "1"}))(t)
	cfg := Config{
		Config:  proctest.Must(config.Load(nil, "", []string{"LOCKSTEP_ROOT=" + w.root, "LOCKSTEP_TREE_GRACE=30m", "LOCKSTEP_GRACE=0s"}))(t),
		Redis:   proctest.Must(redisx.Parse(server.URL(), nil))(t),
		Log:     slog.New(slog.DiscardHandler),
		Metrics: telemetry.New(), NoPrepare: true,
	}
	ctx, stop := context.WithCancel(context.Background())
	var working sync.WaitGroup
	working.Go(func() {
		if err := RunWorker(ctx, cfg); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	w.stop = func() { stop(); working.Wait() }
	t.Cleanup(w.stop)

	namespace := cfg.Namespace()
	locker := proctest.Must(locking.New(locking.Config{Redis: w.client, Prefix: namespace.Locks(), Worker: "gc"}))(t)
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	vol := proctest.Must(volume.OpenVolume(w.root, volume.Config{Grace: time.Millisecond}))(t)
	t.Cleanup(vol.Close)
	w.registry = watch.NewRegistry(w.client, namespace)
	w.gc = gc{
		volume: vol, states: state.NewStore(w.client, namespace), locker: locker, redis: w.client, namespace: namespace,
		log: slog.New(slog.NewTextHandler(t.Output(), nil)), freed: func(int64) {},
	}
	return w
}

// forget forgets what is gone after no time at all, and returns how many repositories that were.
func (w *goneWorld) forget() int {
	w.Helper()
	n, err := w.gc.forgetGone(w.Context())
	if err != nil {
		w.Log(err)
	}
	return n
}

func (w *goneWorld) repo(path string) events.RepoPath {
	w.Helper()
	return proctest.Must(events.ParseRepoPath(path))(w)
}

// publish publishes changes and waits until nothing waits for the worker.
func (w *goneWorld) publish(changes ...events.Change) {
	w.Helper()
	for _, c := range changes {
		change := proctest.Must(events.NewChange(c))(w)
		proctest.Must(0, PublishChange(w.Context(), w.client, w.gc.namespace, change))(w)
	}
	w.idle()
}

func (w *goneWorld) idle() {
	w.Helper()
	proctest.Eventually(w.T, func() bool {
		all, err := stream.Stats(w.Context(), w.client, string(w.gc.namespace), w.gc.namespace.Changes())
		group, ok := all.Group(events.WorkersGroup)
		return err == nil && ok && group.Lag == 0 && group.Pending == 0
	}, "all changes are settled")
}

func (w *goneWorld) watch(app, repo string) watch.Key {
	w.Helper()
	one := proctest.Must(watch.New(watch.Watch{App: app, URL: w.git.URL("acme/stays"), Repo: w.repo(repo)}))(w)
	proctest.Must(w.registry.Put(w.Context(), one))(w)
	return one.Key()
}

// unwatch removes watches and waits until that is settled.
func (w *goneWorld) unwatch(keys ...watch.Key) {
	w.Helper()
	w.idle()
	for _, key := range keys {
		proctest.Must(w.registry.Remove(w.Context(), key))(w)
	}
	w.idle()
}

// left is what is left, in numbers: keys in Redis, fields of the state of acme/stays, lines of repos ls, and files
// outside acme/stays.
func (w *goneWorld) left() (left [4]int) {
	w.Helper()
	for _, key := range w.client.Keys(w.Context(), "*").Val() {
		if key != w.gc.namespace.Working() && key != w.gc.namespace.Locks()+"acme/stays" {
			left[0]++
		}
	}
	left[1] = int(w.client.HLen(w.Context(), w.gc.namespace.Repo(w.repo("acme/stays"))).Val())
	left[2] = len(proctest.Must(w.gc.states.List(w.Context(), "", 0, 1000))(w).Repos)
	_ = filepath.WalkDir(w.root, func(path string, entry fs.DirEntry, _ error) error {
		left[3]++
		if entry.Name() == "stays" && entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	return left
}

func TestGoneRepositoriesLeaveNothing(t *testing.T) {
	w := newGoneWorld(t)
	w.watch("stays", "acme/stays")
	w.idle()
	before := w.left()
	var missing []events.Change
	for i := range 30 {
		name := fmt.Sprintf("Missing-%d/r%d", i%3, i)
		missing = append(missing, events.Change{URL: w.git.URL(name)})
	}
	w.publish(missing...)
	var keys []watch.Key
	for i := range 10 {
		keys = append(keys, w.watch("docs", fmt.Sprintf("Made/sub/r%d", i)), w.watch(fmt.Sprint("app-", i), "acme/stays"))
	}
	w.unwatch(keys...)
	if now := w.left(); now[0] < before[0]+40 || now[2] != before[2]+40 {
		t.Fatalf("%v before, %v after; want something to forget", before, now)
	}
	w.gc.safe = time.Hour
	if n := w.forget(); n != 0 {
		t.Errorf("%d forgotten before the safe time", n)
	}
	w.gc.safe = 0
	if n, now := w.forget(), w.left(); n != 40 || now != before {
		t.Errorf("%d forgotten, want 40; %v left, want %v as before", n, now, before)
	}
}

// remove publishes a removal by hand.
func (w *goneWorld) remove(repo string) {
	w.Helper()
	w.publish(events.Change{Type: events.ChangeRemoved, Repo: w.repo(repo), Force: true})
}

// made syncs a repository and removes it again.
func (w *goneWorld) made(repo string) events.RepoPath {
	w.Helper()
	w.publish(events.Change{Repo: w.repo(repo), URL: w.git.URL("acme/stays")})
	w.remove(repo)
	return w.repo(repo)
}

func TestWhatKeepsARepository(t *testing.T) {
	for name, tc := range map[string]struct {
		keep func(w *goneWorld)
		end  func(w *goneWorld) // nil if nothing ends it
	}{
		"nothing": {keep: func(w *goneWorld) {}, end: func(w *goneWorld) {}},
		"a clone by hand": {keep: func(w *goneWorld) {
			w.publish(events.Change{Repo: w.repo("acme/gone"), URL: w.git.URL("acme/stays")})
		}},
		"a dead change": {
			keep: func(w *goneWorld) {
				w.client.XAdd(w.Context(), &redis.XAddArgs{Stream: w.gc.namespace.Dead(), Values: []string{"reason", "too old",
					"stream", w.gc.namespace.Changes(), "original:repo", "acme/gone", "original:url", w.git.URL("acme/stays")}})
			},
			end: func(w *goneWorld) {
				dead := stream.NewDeadLetters(w.client, string(w.gc.namespace))
				letters, _, err := dead.List(w.Context(), stream.Query{})
				proctest.Must(dead.Drop(w.Context(), proctest.Must(letters, err)(w)[0].ID))(w)
			},
		},
		"a change that waits": {
			keep: func(w *goneWorld) {
				proctest.Must(0, w.git.Delete("acme/stays"))(w)
				w.git.Answer("acme/stays", http.StatusServiceUnavailable)
				proctest.Must(0, PublishChange(w.Context(), w.client, w.gc.namespace, proctest.Must(events.NewChange(events.Change{
					Repo: w.repo("acme/gone"), URL: w.git.URL("acme/stays"),
				}))(w)))(w)
				proctest.Eventually(w.T, func() bool {
					changes := proctest.Must(stream.Stats(w.Context(), w.client, string(w.gc.namespace), w.gc.namespace.Changes()))(w)
					workers, _ := changes.Group(events.WorkersGroup)
					return workers.Parked == 1
				}, "the change has failed, and waits")
			},
			end: func(w *goneWorld) {
				w.git.Answer("acme/stays", 0)
				w.idle()
			},
		},
		"an unread change": {
			keep: func(w *goneWorld) {
				w.stop()
				proctest.Must(0, PublishChange(w.Context(), w.client, w.gc.namespace, proctest.Must(events.NewChange(events.Change{
					Repo: w.repo("acme/gone"), URL: w.git.URL("acme/stays"),
				}))(w)))(w)
			},
		},
		"a pinned tree": {
			keep: func(w *goneWorld) {
				w.publish(events.Change{Repo: w.repo("acme/gone"), URL: w.git.URL("acme/stays")})
				w.pinned = proctest.Must(tree.Open(w.root, "acme/gone"))(w)
				change := proctest.Must(events.NewChange(events.Change{Type: events.ChangeRemoved, Repo: w.repo("acme/gone"), Force: true}))(w)
				proctest.Must(0, PublishChange(w.Context(), w.client, w.gc.namespace, change))(w)
				proctest.Eventually(w.T, func() bool {
					_, err := os.Lstat(filepath.Join(w.root, "acme/gone"))
					return err != nil
				}, "its name is removed")
			},
			end: func(w *goneWorld) {
				proctest.Must(0, w.pinned.Close())(w)
				w.idle()
			},
		},
		"a fence ahead of Redis' clock": {keep: func(w *goneWorld) {
			ahead := fmt.Appendf(nil, "%020d\n", time.Now().Add(time.Hour).UnixMicro())
			proctest.Must(0, os.WriteFile(filepath.Join(w.root, ".lockstep/repos/acme/gone/fence"), ahead, 0o644))(w)
		}},
		"a volume that is not mounted": {
			keep: func(w *goneWorld) { proctest.Must(0, os.Rename(w.root, w.root+"-away"))(w) },
			end:  func(w *goneWorld) { proctest.Must(0, os.Rename(w.root+"-away", w.root))(w) },
		},
		"another cell": {keep: func(w *goneWorld) {
			w.client.HSet(w.Context(), w.gc.namespace.Repo(w.repo("acme/gone")), "cell", "moved eu-1 7 0-0")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newGoneWorld(t)
			repo := w.made("acme/gone")
			tc.keep(w)
			if n := w.forget(); (n == 1) != (name == "nothing") {
				t.Fatalf("%d forgotten", n)
			}
			if tc.end == nil {
				return
			}
			tc.end(w)
			w.forget()
			gone, err := w.gc.volume.IsGone(repo)
			if known, bad := w.gc.states.Load(w.Context(), repo); !gone || !known.IsZero() || err != nil || bad != nil {
				t.Errorf("%v, %v, %v, %v; want it gone and forgotten", gone, known, err, bad)
			}
		})
	}
}

// TestRestoredStateIsKept has a state without any fence.
func TestRestoredStateIsKept(t *testing.T) {
	w := newGoneWorld(t)
	fields := map[string]string{"repo": "acme/gone", "given:refs/heads/main:docs": "c1"}
	proctest.Must(w.gc.states.Restore(t.Context(), w.repo("acme/gone"), fields))(t)
	if n, lines := w.forget(), w.left()[2]; n != 0 || lines != 1 {
		t.Errorf("%d forgotten, %d in the list; want 0, 1", n, lines)
	}
}

// TestFoldersAreForgottenWithoutState has a Redis that has lost its data.
func TestFoldersAreForgottenWithoutState(t *testing.T) {
	w := newGoneWorld(t)
	w.watch("stays", "acme/stays")
	w.idle()
	before := w.left()[3]
	w.publish(events.Change{URL: w.git.URL("missing/r1")}, events.Change{URL: w.git.URL("missing/sub/r2")})
	w.stop()
	proctest.Must(0, w.client.FlushAll(t.Context()).Err())(t)
	if n, files := w.forget(), w.left()[3]; n != 2 || files != before {
		t.Errorf("%d forgotten, %d files; want 2, %d", n, files, before)
	}
}

// TestWhoComesMeanwhileKeepsTheState has a watch that is added, and a change that waits for the lease, while a repository
// is about to be forgotten.
func TestWhoComesMeanwhileKeepsTheState(t *testing.T) {
	w := newGoneWorld(t)
	repo := w.made("acme/gone")
	w.stop()
	hold := func() *locking.Lease {
		return proctest.Must(w.gc.locker.Acquire(t.Context(), locking.Request{Key: repo.Key()}))(t)
	}
	lease := hold()
	forget := func(lease *locking.Lease) bool {
		t.Helper()
		return proctest.Must(w.gc.states.Forget(t.Context(), repo, lease.Guard()))(t)
	}
	key := w.watch("docs", "acme/gone")
	if forget(lease) {
		t.Error("forgotten although it is watched")
	}
	proctest.Must(w.registry.Remove(t.Context(), key))(t)
	other := proctest.Must(locking.New(locking.Config{Redis: w.client, Prefix: w.gc.namespace.Locks(), Worker: "other"}))(t)
	defer func() { _ = other.Close(context.Background()) }()
	waiting := make(chan *locking.Lease)
	go func() {
		got, _ := other.Acquire(context.Background(), locking.Request{Key: repo.Key()})
		waiting <- got
	}()
	proctest.Eventually(t, func() bool {
		return w.client.Exists(t.Context(), lease.Guard().Queue).Val() == 1
	}, "the change waits")
	if forget(lease) {
		t.Error("forgotten although a change waits for the lease")
	}
	proctest.Must(0, lease.Release(t.Context()))(t)
	next := <-waiting
	if forget(lease) {
		t.Error("forgotten by a former holder")
	}
	if !forget(next) {
		t.Error("not forgotten by the holder")
	}
	if n := w.client.Exists(t.Context(), next.Guard().Key, w.gc.namespace.Repo(repo)).Val(); n != 0 {
		t.Errorf("%d keys left", n)
	}
	_ = next.Release(t.Context())
	last := hold()
	if last.Fence() <= next.Fence() || forget(next) || forget(lease) {
		t.Errorf("fence %d after %d, or a former holder has forgotten the repository", last.Fence(), next.Fence())
	}
	_ = last.Release(t.Context())
}

// TestChangesAtTheMomentOfForgetting publishes syncs and removals of a repository while it is forgotten again and again.
func TestChangesAtTheMomentOfForgetting(t *testing.T) {
	w := newGoneWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	var forgetting sync.WaitGroup
	forgetting.Go(func() {
		for ctx.Err() == nil {
			if _, err := w.gc.forgetGone(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	for range 20 {
		w.made("acme/gone")
		w.publish(events.Change{URL: w.git.URL("missing/r1")})
	}
	w.publish(events.Change{Repo: w.repo("acme/gone"), URL: w.git.URL("acme/stays")})
	stop()
	forgetting.Wait()
	results := proctest.AwaitResults(t, w.client, 61)
	for _, r := range results {
		if r.Type == events.ResultFailed && r.Class != events.ClassNotFound || r.Attempts > 1 {
			t.Errorf("result %+v", r)
		}
	}
	if content := proctest.Must(os.ReadFile(filepath.Join(w.root, "acme/gone/a")))(t); string(content) != "1" {
		t.Errorf("the clone has %q", content)
	}
	proctest.AssertIdle(t, w.client)
}

// TestRedirectIsKeptUntilTheOldPathIsGone renames a repository. When the redirect is forgotten, and another repository
// has taken the old path, the same request does not move that.
func TestRedirectIsKeptUntilTheOldPathIsGone(t *testing.T) {
	w := newGoneWorld(t)
	was, to := w.repo("acme/old"), w.repo("acme/new")
	proctest.Must(w.git.Create(t.Context(), "acme/old", map[string]string{"a": "old"}))(t)
	w.publish(events.Change{URL: w.git.URL("acme/old"), App: "docs"})
	proctest.Must(0, w.git.Rename("acme/old", "acme/new"))(t)
	move := events.Change{Type: events.ChangeMoved, Repo: was, To: to, URL: w.git.URL("acme/new")}
	w.publish(move)
	moved := func() bool {
		return proctest.Must(w.gc.states.Load(t.Context(), was))(t).MovedTo(to, move.URL)
	}
	if n := w.forget(); n != 0 || !moved() {
		t.Fatalf("%d forgotten while the old names are there, or not moved", n)
	}
	proctest.Eventually(t, func() bool { // the names, the trees, the rest
		proctest.Must(Collect(t.Context(), w.gc.volume, w.gc.locker, was, CollectOptions{}))(t)
		return proctest.Must(w.gc.volume.IsGone(was))(t)
	}, "the old path is gone from the volume")
	if n := w.forget(); n != 1 || moved() {
		t.Errorf("%d forgotten", n)
	}
	proctest.Must(w.git.Create(t.Context(), "acme/old", map[string]string{"a": "other"}))(t)
	w.publish(events.Change{URL: w.git.URL("acme/old"), App: "docs"}, move)
	for path, want := range map[string]string{"acme/old/a": "other", "acme/new/a": "old"} {
		if got, err := os.ReadFile(filepath.Join(w.root, path)); string(got) != want {
			t.Errorf("%s has %q, %v; want %q", path, got, err, want)
		}
	}
}
