package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/cells"
	"lockstep/internal/cells/move"
	"lockstep/internal/ext/lfs"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/ext/views"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/view"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// cellRig is a directory with cells on a Redis Cluster, each with a volume of its own.
type cellRig struct {
	*testing.T
	git       *gitserver.Server
	url       string
	client    redis.UniversalClient
	directory *cells.Directory
	cells     map[string]*cellUnderTest
	pin       bool // moves ask for the repository to stay in the new cell
	moving    sync.WaitGroup
	failed    sync.Map // key of a repository → error of its last move

	tokenFile string // with the API token of all processes; "": they have none
}

type cellUnderTest struct {
	name, root string
	reader     string // address
	states     *state.Store
	watches    *watch.Registry
	namespace  events.Namespace
}

func startCells(t *testing.T, names ...string) *cellRig {
	t.Helper()
	return startCellsAt(t, redistest.StartCluster(t), names...)
}

func startCellsAt(t *testing.T, cluster *redistest.Cluster, names ...string) *cellRig {
	t.Helper()
	rig := &cellRig{T: t, git: proctest.StartGit(t), url: cluster.URL(), cells: map[string]*cellUnderTest{}, pin: true}
	t.Cleanup(rig.moving.Wait)
	rig.client = redistest.Open(t, rig.url)
	rig.directory = proctest.Must(cells.OpenOrNew(t.Context(), rig.client))(t)
	for _, name := range names {
		rig.add(name)
	}
	proctest.Must(0, rig.directory.Settle(t.Context(), rig.directory.Epoch()))(t)
	return rig
}

// requireToken gives processes that are started from now on an API token: with tokens of apps, readers ask for one.
func (r *cellRig) requireToken() {
	r.Helper()
	r.tokenFile = filepath.Join(r.TempDir(), "api-token")
	proctest.Must(0, os.WriteFile(r.tokenFile, []byte("the token of the operator"), 0o600))(r)
}

// add adds a cell.
func (r *cellRig) add(name string) *cellUnderTest { r.Helper(); return r.addWeighted(name, 0) }

func (r *cellRig) addWeighted(name string, weight int) *cellUnderTest {
	r.Helper()
	added := proctest.Must(r.directory.Add(r.Context(), name, "", weight))(r.T)
	c := &cellUnderTest{
		name: name, root: r.TempDir(), reader: proctest.FreeAddress(r.T), namespace: added.Prefix,
		states: state.NewStore(r.client, added.Prefix), watches: watch.NewRegistry(r.client, added.Prefix),
	}
	r.cells[name] = c
	return c
}

// args returns the arguments of a worker of a cell.
func (r *cellRig) args(c *cellUnderTest, more ...string) []string {
	args := []string{"--redis", r.url, "--cell", c.name, "--root", c.root, "--lease", "1s", "--tree-grace", "1s", "--log-level", "info"}
	if r.tokenFile != "" {
		args = append(args, "--api-token-file", r.tokenFile)
	}
	return append(args, more...)
}

func (r *cellRig) startWorker(c *cellUnderTest) *proctest.Process {
	r.Helper()
	return proctest.Start(r.T, append([]string{"serve"}, r.args(c, "--roles", "worker")...)...)
}

// startReader starts the reader of a cell whose worker has opened the volume.
func (r *cellRig) startReader(c *cellUnderTest) *proctest.Process {
	r.Helper()
	p := proctest.Start(r.T, append([]string{"serve"}, r.args(c, "--roles", "reader", "--listen", c.reader, "--cell-reader", "http://"+c.reader)...)...)
	p.AwaitLog("listening")
	return p
}

// create creates a repository that is placed in a cell, and watches it there.
func (r *cellRig) create(c *cellUnderTest, prefix string) events.RepoPath {
	r.Helper()
	for i := 0; ; i++ {
		repo := proctest.Must(events.ParseRepoPath(fmt.Sprintf("acme/%s-%d", prefix, i)))(r.T)
		if r.directory.Place(repo).Name != c.name {
			continue
		}
		proctest.Must(r.git.Create(r.Context(), repo.String(), map[string]string{"a": "0", "b": prefix}))(r.T)
		selector := proctest.Must(watch.ParseSelector("main"))(r.T)
		w := proctest.Must(watch.New(watch.Watch{App: "search", URL: r.git.URL(repo.String()), Ref: selector, Poll: watch.Never}))(r.T)
		proctest.Must(c.watches.Put(r.Context(), w))(r.T)
		return repo
	}
}

var mainRef = func() events.Ref {
	ref, err := events.ParseRef("main")
	if err != nil {
		panic(err)
	}
	return ref
}()

// push commits, and adds a change to the stream of a cell, as a receiver would.
func (r *cellRig) push(c *cellUnderTest, repo events.RepoPath, content string) (commit string) {
	r.Helper()
	commit = proctest.Must(r.git.Commit(r.Context(), repo.String(), gitserver.Main, gitserver.Edit{Write: map[string]string{"a": content}}))(r.T)
	change := proctest.Must(events.NewChange(events.Change{
		ID: uuid.NewString(), Source: "/test", App: "search", Watched: true, Repo: repo, Ref: mainRef, URL: r.git.URL(repo.String()), After: commit,
	}))(r.T)
	proctest.Must(0, app.PublishChange(r.Context(), r.client, c.namespace, change))(r.T)
	return commit
}

func (r *cellRig) awaitGiven(c *cellUnderTest, repo events.RepoPath, commit string) {
	r.Helper()
	proctest.Eventually(r.T, func() bool {
		known, err := c.states.Load(r.Context(), repo)
		return err == nil && known.IsHere() && known.Given("search", mainRef) == commit
	}, "%s is at %.12s in cell %s", repo, commit, c.name)
}

// request moves a repository in the background, as lockstep repos move does, until that succeeds or is not wanted any more, or stop is
// called.
func (r *cellRig) request(repo events.RepoPath, from, to *cellUnderTest) (stop func()) {
	mover := move.Mover{Directory: r.directory, Redis: r.client, Lease: time.Second, Log: slog.New(slog.DiscardHandler)}
	ctx, stop := context.WithCancel(r.Context())
	pin := r.pin
	r.moving.Go(func() {
		for redisx.Pause(ctx, 100*time.Millisecond) {
			err := mover.Move(ctx, repo, from.name, to.name, pin)
			if err == nil {
				return
			}
			r.failed.Store(repo.Key(), err.Error())
			if errors.Is(err, cells.ErrChanged) {
				return
			}
		}
	})
	return stop
}

// awaitFailure waits until a move of a repository has failed for a reason.
func (r *cellRig) awaitFailure(repo events.RepoPath, reason string) {
	r.Helper()
	proctest.Eventually(r.T, func() bool {
		failed, _ := r.failed.Load(repo.Key())
		text, _ := failed.(string)
		return strings.Contains(text, reason)
	}, "the move of %s fails: %s", repo, reason)
}

// awaitLive waits until a worker of a cell has subscribed to its changes.
func (r *cellRig) awaitLive(c *cellUnderTest) {
	r.Helper()
	proctest.Eventually(r.T, func() bool {
		workers, err := stream.Consumers(r.Context(), r.client, c.namespace.Changes(), events.WorkersGroup)
		return err == nil && len(workers) > 0
	}, "a worker of cell %s is live", c.name)
}

// dieMoving moves a repository with lockstep repos move, which is killed when it has finished a step.
func (r *cellRig) dieMoving(repo events.RepoPath, from, to *cellUnderTest, step string) {
	r.Helper()
	r.awaitLive(to)
	died, err := runUntilKilled(r.TempDir(), r.args(from, "--move", repo.String(), "--to", to.name), "move "+step, 1, time.Minute)
	if err != nil || !died {
		r.Fatalf("the process was not killed after %q: %v", step, err)
	}
}

func (r *cellRig) awaitMoved(repo events.RepoPath, to *cellUnderTest) {
	r.Helper()
	proctest.Eventually(r.T, func() bool {
		known, err := to.states.Load(r.Context(), repo)
		_, came := known.From()
		return err == nil && known.IsHere() && came && r.directory.Refresh(r.Context()) == nil && r.directory.Place(repo).Name == to.name
	}, "%s has moved to %s", repo, to.name)
}

// results returns the results of a repository in a cell for the app that changed something, in order.
func (r *cellRig) results(c *cellUnderTest, repo events.RepoPath) (results []events.Result) {
	r.Helper()
	for _, entry := range proctest.Must(r.client.XRange(r.Context(), c.namespace.Results(), "-", "+").Result())(r.T) {
		result := proctest.DecodeResult(r.T, entry)
		if result.Repo.Equal(repo) && result.App == "search" && result.Type != events.ResultPolled && (result.Type != events.ResultSynced || !result.Unchanged()) {
			results = append(results, result)
		}
	}
	return results
}

// assertChain checks that the results of a repository in several cells, in order, go from commit to commit without a hole or a double.
func (r *cellRig) assertChain(repo events.RepoPath, commit string, order ...*cellUnderTest) {
	r.Helper()
	before, fence := "", uint64(0)
	for n, c := range order {
		for i, result := range r.results(c, repo) {
			isFirst := n > 0 && i == 0 // the commit before may not be there
			if result.Type != events.ResultSynced || result.Before != before || result.Full && before != "" && !isFirst {
				r.Errorf("%s in %s: result %d is %s from %.12q to %.12q (%s), want from %.12q", repo, c.name, i, result.Type, result.Before, result.After, result.Error, before)
			}
			if result.Fence < fence {
				r.Errorf("%s in %s: result %d has fence %d after %d", repo, c.name, i, result.Fence, fence)
			}
			before, fence = result.After, result.Fence
		}
	}
	if before != commit {
		r.Errorf("%s: the last result is %.12q, want %.12q", repo, before, commit)
	}
}

// assertTree checks that a cell has a repository published with a content.
func (r *cellRig) assertTree(c *cellUnderTest, repo events.RepoPath, content string) {
	r.Helper()
	got, err := os.ReadFile(filepath.Join(c.root, repo.String(), "a"))
	if err != nil || string(got) != content {
		r.Errorf("%s in %s has %q (%v), want %q", repo, c.name, got, err, content)
	}
}

// TestRepositoryMovesBetweenCellsWhateverDies moves one repository for each step of a move, of which the process that does the step is
// killed when it has finished it. Pushes arrive in the old cell before, during and after the move.
func TestRepositoryMovesBetweenCellsWhateverDies(t *testing.T) {
	t.Parallel()
	rig := startCells(t, "eu-1", "eu-2")
	one, two := rig.cells["eu-1"], rig.cells["eu-2"]
	rig.startWorker(one).AwaitLog("worker takes changes")
	rig.startWorker(two).AwaitLog("worker takes changes")
	rig.startReader(one)

	steps := []string{"marked", "activated", "flipped", "requested", "done"}
	repos, lasts := map[string]events.RepoPath{}, map[string]string{}
	for _, step := range steps {
		repo := rig.create(one, step)
		repos[step] = repo
		rig.awaitGiven(one, repo, rig.push(one, repo, "first"))
	}
	for _, step := range steps {
		rig.dieMoving(repos[step], one, two, step)
		lasts[step] = rig.push(one, repos[step], "during "+step)
	}
	for _, step := range steps {
		repo := repos[step]
		rig.awaitMoved(repo, two)
		rig.awaitGiven(two, repo, lasts[step])
		lasts[step] = rig.push(one, repo, "after "+step) // by a receiver with an old copy of the directory
	}
	for _, step := range steps {
		repo := repos[step]
		rig.awaitGiven(two, repo, lasts[step])
		rig.assertChain(repo, lasts[step], one, two)
		rig.assertTree(two, repo, "after "+step)
		if set := proctest.Must(two.watches.Of(t.Context(), repo))(t); len(set.Watches) != 1 {
			t.Errorf("%s: %d watches in the new cell, want one", step, len(set.Watches))
		}
	}

	rig.assertCleanedUp(one, repos)
}

// assertCleanedUp waits until nothing but the marks is left of repositories in the cell that they have left.
func (r *cellRig) assertCleanedUp(c *cellUnderTest, repos map[string]events.RepoPath) {
	r.Helper()
	proctest.Eventually(r.T, func() bool {
		left, err := r.client.ZUnion(context.Background(), redis.ZStore{Keys: []string{c.namespace.Departing(), c.namespace.Departed()}}).Result()
		return err == nil && len(left) == 0
	}, "the old cell is cleaned up")
	for step, repo := range repos {
		if _, err := os.Lstat(filepath.Join(c.root, repo.String())); !os.IsNotExist(err) {
			r.Errorf("%s: the old name is still there: %v", step, err)
		}
		if set := proctest.Must(c.watches.Of(r.Context(), repo))(r.T); len(set.Watches) != 0 {
			r.Errorf("%s: the old cell still has its watches", step)
		}
		if _, _, moved := proctest.Must(c.states.Load(r.Context(), repo))(r.T).MovedToCell(); !moved {
			r.Errorf("%s: the mark is gone from the old cell", step)
		}
	}
}

// TestOvertakenMoveDoesNoHarm stops a process when it has finished a step of a move. A worker completes the move, and the repository moves
// back. Then the stopped process goes on.
func TestOvertakenMoveDoesNoHarm(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	rig := startCells(t, "eu-1", "eu-2")
	one, two := rig.cells["eu-1"], rig.cells["eu-2"]
	rig.startWorker(one).AwaitLog("worker takes changes")
	rig.startWorker(two)
	rig.awaitLive(two)
	steps := []string{"marked", "activated", "flipped", "requested"}
	repos, overtaken := map[string]events.RepoPath{}, map[string]*exec.Cmd{}
	for _, step := range steps {
		repos[step] = rig.create(one, step)
		rig.awaitGiven(one, repos[step], rig.push(one, repos[step], "first"))
		cmd := exec.Command("lockstep-dying", rig.args(one, "--move", repos[step].String(), "--to", "eu-2", "--point", "move "+step, "--pass", "1", "--stop")...)
		cmd.Dir = t.TempDir()
		proctest.Must(0, cmd.Start())(t)
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		proctest.Eventually(t, func() bool {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
			_, state, _ := strings.Cut(string(status), ") ")
			return err == nil && strings.HasPrefix(state, "T")
		}, "the process has stopped after %q", step)
		overtaken[step] = cmd
	}
	last := map[string]string{}
	for _, step := range steps {
		repo := repos[step]
		rig.awaitMoved(repo, two)
		rig.awaitGiven(two, repo, rig.push(two, repo, "second"))
		rig.request(repo, two, one)
	}
	for _, step := range steps {
		repo := repos[step]
		rig.awaitMoved(repo, one)
		last[step] = rig.push(one, repo, "third")
		rig.awaitGiven(one, repo, last[step])
	}
	rig.assertCleanedUp(two, repos)
	for _, step := range steps {
		proctest.Must(0, overtaken[step].Process.Signal(syscall.SIGCONT))(t)
		_ = overtaken[step].Wait() // whether it finds that the move is done, or fails
	}
	for _, step := range steps {
		repo := repos[step]
		last[step] = rig.push(two, repo, "fourth") // by a receiver with an old copy of the directory
		rig.awaitGiven(one, repo, last[step])
		rig.assertTree(one, repo, "fourth")
		rig.assertRoundTrip(repo, last[step], one, two)
		if err := rig.directory.Refresh(t.Context()); err != nil || rig.directory.Place(repo).Name != one.name {
			t.Errorf("%s: placed in %s (%v)", step, rig.directory.Place(repo).Name, err)
		}
	}
	rig.assertCleanedUp(two, repos)
}

// TestOldCellIsCleanedUpWhateverDies kills the worker of the old cell when it has finished a step. The state of one repository is lost in the
// new cell, as in a failover of its Redis: the old cell completes the move again.
func TestOldCellIsCleanedUpWhateverDies(t *testing.T) {
	t.Parallel()
	rig := startCells(t, "eu-1", "eu-2")
	one, two := rig.cells["eu-1"], rig.cells["eu-2"]
	old := rig.startWorker(one)
	old.AwaitLog("worker takes changes")
	rig.startReader(one)
	repos, last := map[string]events.RepoPath{}, map[string]string{}
	for _, name := range []string{"released", "removed", "lost"} {
		repos[name] = rig.create(one, name)
		last[name] = rig.push(one, repos[name], "first")
		rig.awaitGiven(one, repos[name], last[name])
	}
	old.Kill()
	killed := rig.startWorker(two)
	rig.awaitLive(two)
	killed.Kill() // and counts as live for 15 seconds
	rig.request(repos["lost"], one, two)
	rig.awaitMoved(repos["lost"], two)
	rig.moving.Wait()
	proctest.Must(rig.client.Del(t.Context(), two.namespace.Repo(repos["lost"])).Result())(t)
	rig.startWorker(two)
	for _, step := range []string{"released", "removed"} {
		rig.request(repos[step], one, two)
		rig.awaitMoved(repos[step], two)
		if died, err := runUntilKilled(t.TempDir(), rig.args(one), "move "+step, 1, time.Minute); err != nil || !died {
			t.Fatalf("worker was not killed after %q: %v", step, err)
		}
	}
	rig.startWorker(one)
	rig.assertCleanedUp(one, repos)
	for name, repo := range repos {
		rig.awaitGiven(two, repo, last[name])
		rig.assertChain(repo, last[name], one)
		rig.assertTree(two, repo, "first")
	}
}

// TestMoveWaitsUntilAReplicaHasTheMark suspends the replicas: the directory does not change before one of them has the mark.
func TestMoveWaitsUntilAReplicaHasTheMark(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	cluster := redistest.StartCluster(t)
	cluster.AddReplicas()
	rig := startCellsAt(t, cluster, "eu-1", "eu-2")
	one, two := rig.cells["eu-1"], rig.cells["eu-2"]
	rig.startWorker(one).AwaitLog("worker takes changes")
	rig.startReader(one)
	repo := rig.create(one, "marked")
	commit := rig.push(one, repo, "first")
	rig.awaitGiven(one, repo, commit)
	signal := func(to syscall.Signal) {
		for _, replica := range cluster.Replicas {
			proctest.Must(0, syscall.Kill(replica.Pid(), to))(t)
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	rig.startWorker(two)
	rig.request(repo, one, two)
	rig.awaitFailure(repo, "no replica of the old cell's Redis has confirmed the mark")
	proctest.Must(0, rig.directory.Refresh(t.Context()))(t)
	if at := rig.directory.Place(repo).Name; at != one.name {
		t.Errorf("placed in %s before a replica has the mark", at)
	}
	signal(syscall.SIGCONT)
	rig.awaitMoved(repo, two)
	rig.awaitGiven(two, repo, commit)
}

// TestBegunMoveThatNobodyWantsIsDropped begins a move from a cell that is to be drained, and that holds the repository's lease. It is dropped
// when the cell shall be kept after all and, the second time, when the cell is lost. A move to a cell that has another repository at its path is
// refused.
func TestBegunMoveThatNobodyWantsIsDropped(t *testing.T) {
	t.Parallel()
	rig := startCells(t, "eu-1", "eu-2")
	one, two := rig.cells["eu-1"], rig.cells["eu-2"]
	rig.startWorker(one).AwaitLog("worker takes changes")
	rig.startWorker(two).AwaitLog("worker takes changes")
	repo := rig.create(one, "begun")
	rig.awaitGiven(one, repo, rig.push(one, repo, "first"))
	locker := proctest.Must(locking.New(locking.Config{Redis: rig.client, Prefix: one.namespace.Locks()}))(t)
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	occupied := two.namespace.Repo(repo)
	proctest.Must(rig.client.HSet(t.Context(), occupied, "head:refs/heads/main", strings.Repeat("a", 40)).Result())(t)
	stop := rig.request(repo, one, two)
	rig.awaitFailure(repo, "there is another repository at this path in the new cell")
	stop()
	rig.moving.Wait()
	proctest.Must(rig.client.Del(t.Context(), occupied).Result())(t)

	rig.pin = false
	begin := func() *locking.Lease {
		lease := proctest.Must(locker.Acquire(t.Context(), locking.Request{Key: repo.Key()}))(t)
		proctest.Must(rig.directory.Drain(t.Context(), one.name))(t)
		rig.failed.Delete(repo.Key())
		rig.request(repo, one, two)
		proctest.Eventually(t, func() bool {
			return rig.client.ZCard(t.Context(), one.namespace.Locks()+repo.Key()+":queue").Val() > 0
		}, "the move waits for the lease")
		return lease
	}
	lease := begin()
	proctest.Must(rig.directory.Add(t.Context(), one.name, "", 0))(t)
	proctest.Must(0, lease.Release(t.Context()))(t)
	rig.awaitFailure(repo, cells.ErrChanged.Error())
	second := rig.push(one, repo, "second")
	rig.awaitGiven(one, repo, second)
	rig.assertChain(repo, second, one)

	lease = begin()
	if _, errs, code := proctest.RunLockstep(t, nil, "cells", "drain", one.name, "--lost", "--redis", rig.url); code != 0 {
		t.Fatalf("the cell is not given up: %s", errs)
	}
	proctest.Must(0, lease.Release(t.Context()))(t)
	rig.awaitFailure(repo, cells.ErrChanged.Error())
	third := rig.push(two, repo, "third")
	rig.awaitGiven(two, repo, third)
	rig.assertTree(two, repo, "third")
}

// TestEverythingIsFetchedAgain moves repositories with files from Git LFS, with a submodule, with a tree of a view and with a branch that
// nobody watches, and kills the process that moves them when it has requested them from the remote.
func TestEverythingIsFetchedAgain(t *testing.T) {
	t.Parallel()
	rig := startCells(t, "eu-1", "eu-2")
	one, two := rig.cells["eu-1"], rig.cells["eu-2"]
	rig.startWorker(one).AwaitLog("worker takes changes")
	rig.startReader(one)
	part := proctest.Must(rig.git.Create(t.Context(), "acme/part", map[string]string{"p": "part"}))(t)

	type shape struct {
		repo  events.RepoPath
		watch func(*watch.Watch)
		edit  gitserver.Edit
		path  string // of a file that Git does not carry, below the root
		want  string
		last  string // commit
	}
	shapes := []*shape{
		{repo: rig.create(one, "lfs"), watch: func(w *watch.Watch) { w.Options = watch.With(lfs.Options{Mode: lfs.Fetch}) }},
		{repo: rig.create(one, "parts"), watch: func(w *watch.Watch) { w.Options = watch.With(submodules.Options{Mode: events.SubmodulesRequired}) }},
		{repo: rig.create(one, "views"), watch: func(w *watch.Watch) {
			w.Options = watch.With(views.Options{Views: proctest.Must(view.New(map[string][]string{"docs": {"docs"}}))(t), Trees: true})
		}},
	}
	lfs, parts, views := shapes[0], shapes[1], shapes[2]
	lfs.edit = gitserver.Edit{Write: map[string]string{".gitattributes": "*.bin filter=lfs\n", "x.bin": rig.git.LFS(lfs.repo.String()).Put("large")}}
	lfs.path, lfs.want = lfs.repo.String()+"/x.bin", "large"
	parts.edit = gitserver.Edit{
		Write:     map[string]string{".gitmodules": "[submodule \"part\"]\n\tpath = part\n\turl = ../part.git\n"},
		Submodule: map[string]string{"part": part},
	}
	parts.path, parts.want = parts.repo.String()+"/part/p", "part"
	views.edit = gitserver.Edit{Write: map[string]string{"docs/d": "text"}}
	views.path, views.want = views.repo.String()+"@~/search/docs/docs/d", "text"
	for _, s := range shapes {
		selector := proctest.Must(watch.ParseSelector("main"))(t)
		w := watch.Watch{App: "search", URL: rig.git.URL(s.repo.String()), Ref: selector, Poll: watch.Never}
		s.watch(&w)
		proctest.Must(one.watches.Put(t.Context(), proctest.Must(watch.New(w))(t)))(t)
		proctest.Must(rig.git.Commit(t.Context(), s.repo.String(), gitserver.Main, s.edit))(t)
		s.last = rig.push(one, s.repo, "first")
		rig.awaitGiven(one, s.repo, s.last)
	}
	byHand, side := rig.create(one, "byhand"), proctest.Must(events.ParseRef("refs/heads/side"))(t)
	rig.awaitGiven(one, byHand, rig.push(one, byHand, "first"))
	commit := proctest.Must(rig.git.Commit(t.Context(), byHand.String(), "side", gitserver.Edit{Write: map[string]string{"a": "side"}}))(t)
	change := proctest.Must(events.NewChange(events.Change{ID: uuid.NewString(), Source: "/test", App: "tool", Repo: byHand, Ref: side, URL: rig.git.URL(byHand.String())}))(t)
	proctest.Must(0, app.PublishChange(t.Context(), rig.client, one.namespace, change))(t)
	isPublished := func(c *cellUnderTest) func() bool {
		return func() bool {
			known, err := c.states.Load(t.Context(), byHand)
			got, _ := os.ReadFile(filepath.Join(c.root, byHand.String()+"@side", "a"))
			return err == nil && known.Head(side) == commit && known.Given("tool", side) == commit && string(got) == "side"
		}
	}
	proctest.Eventually(t, isPublished(one), "a branch is published by hand")
	rig.startWorker(two).AwaitLog("worker takes changes")
	rig.request(byHand, one, two)
	for _, s := range shapes {
		rig.dieMoving(s.repo, one, two, "requested")
	}
	proctest.Eventually(t, isPublished(two), "the branch that nobody watches is published in the new cell")
	for _, s := range shapes {
		rig.awaitMoved(s.repo, two)
		proctest.Eventually(t, func() bool { // without a push
			got, err := os.ReadFile(filepath.Join(two.root, s.path))
			return err == nil && string(got) == s.want
		}, "%s is published in the new cell", s.path)
		s.last = rig.push(two, s.repo, "after")
		rig.awaitGiven(two, s.repo, s.last)
		rig.assertTree(two, s.repo, "after")
		there := rig.results(two, s.repo)
		here := rig.results(one, s.repo)
		if len(there) == 0 || len(here) == 0 || there[0].Before != here[len(here)-1].After {
			t.Errorf("%s: results %+v do not follow %+v", s.repo, there, here)
		}
	}
}

// TestCellIsFilledAndDrained adds a cell to one with repositories, and then drains it, while pushes go on.
func TestCellIsFilledAndDrained(t *testing.T) {
	t.Parallel()
	rig := startCells(t, "eu-1")
	one := rig.cells["eu-1"]
	rig.startWorker(one).AwaitLog("worker takes changes")
	rig.startReader(one)
	repos, last := make([]events.RepoPath, 12), map[string]string{}
	for i := range repos {
		repos[i] = rig.create(one, fmt.Sprintf("repo%02d", i))
		last[repos[i].Key()] = rig.push(one, repos[i], "first")
	}
	for _, repo := range repos {
		rig.awaitGiven(one, repo, last[repo.Key()])
	}
	two := rig.add("eu-2")
	rig.startWorker(two).AwaitLog("worker takes changes")
	rig.startReader(two)
	order := map[string][]*cellUnderTest{}
	for _, repo := range repos {
		order[repo.Key()] = []*cellUnderTest{one}
	}
	for _, phase := range []string{"filled", "drained"} {
		if phase == "drained" {
			proctest.Must(rig.directory.Drain(t.Context(), two.name))(t)
		}
		for _, repo := range repos { // into the old cell of some, which forwards them
			last[repo.Key()] = rig.push(one, repo, phase)
		}
		proctest.Eventually(t, func() bool { return rig.directory.Refresh(t.Context()) == nil && !rig.directory.Pending() }, "the cell is %s", phase)
		there := 0
		for _, repo := range repos {
			at := rig.cells[rig.directory.Place(repo).Name]
			if at == two {
				there++
			}
			if seen := order[repo.Key()]; seen[len(seen)-1] != at {
				order[repo.Key()] = append(seen, at)
			}
			rig.awaitGiven(at, repo, last[repo.Key()])
			rig.assertTree(at, repo, phase)
		}
		if phase == "filled" && (there == 0 || there == len(repos)) || phase == "drained" && there != 0 {
			t.Errorf("%s: %d of %d repositories are in the new cell", phase, there, len(repos))
		}
	}
	for _, repo := range repos {
		if o := order[repo.Key()]; len(o) < 3 { // the results of the first cell before and after are in one stream
			rig.assertChain(repo, last[repo.Key()], o...)
		} else {
			rig.assertRoundTrip(repo, last[repo.Key()], one, two)
		}
	}
}

// assertRoundTrip checks the results of a repository that was moved to another cell and back.
func (r *cellRig) assertRoundTrip(repo events.RepoPath, commit string, home, away *cellUnderTest) {
	r.Helper()
	all := append(r.results(home, repo), r.results(away, repo)...)
	slices.SortFunc(all, func(a, b events.Result) int { return a.Time.Compare(b.Time) })
	before := ""
	for i, result := range all {
		if result.Before != before {
			r.Errorf("%s: result %d is from %.12q, want %.12q", repo, i, result.Before, before)
		}
		before = result.After
	}
	if before != commit {
		r.Errorf("%s: the last result is %.12q, want %.12q", repo, before, commit)
	}
}
