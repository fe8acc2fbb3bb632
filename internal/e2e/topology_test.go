package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// redisAt returns a client for a URL of any topology, which is closed at the end of the test.
func redisAt(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	return redistest.Open(t, url)
}

func TestServiceOnRedisCluster(t *testing.T) {
	t.Parallel()
	git, cluster, root := proctest.StartGit(t), redistest.StartCluster(t), t.TempDir()
	l := newLoad(t, git, redisAt(t, cluster.URL()))
	l.repos, l.pushes = 6, 4
	for range 2 {
		proctest.Start(t, "serve", "--redis", cluster.URL(), "--root", root, "--log-level", "warn")
	}
	if err := l.push(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.assertDone(t, root)
	used := 0
	for _, node := range cluster.Nodes {
		if proctest.Must(node.Client().DBSize(t.Context()).Result())(t) > 0 {
			used++
		}
	}
	if used != 1 {
		t.Errorf("%d nodes have keys, want one: all keys share a hash tag", used)
	}
}

// TestNextChangeRepairsWritesLostInFailover promotes a replica that missed a push to every repository: the changes, results
// and heads are lost, although some trees are published. The next push to a repository repairs it; without one, the periodic
// reconciliation would.
func TestNextChangeRepairsWritesLostInFailover(t *testing.T) {
	testenv.Long(t)
	const repos = 6
	ctx := context.Background()
	git, s, root := proctest.StartGit(t), redistest.StartSentinel(t), t.TempDir()
	client := redisAt(t, s.URL())
	var workers []*proctest.Process
	address := proctest.FreeAddress(t)
	for _, listen := range []string{address, ""} {
		workers = append(workers, proctest.Start(t, "serve", "--redis", s.URL(), "--root", root, "--lease", "2s", "--listen", listen))
	}
	repo := func(i int) string { return fmt.Sprintf("acme/repo-%d", i) }
	type pushed struct{ id, repo, commit string }
	push := func(i, n int) pushed {
		t.Helper()
		files := map[string]string{fmt.Sprintf("push-%d", n): "x"}
		var commit string
		if n == 1 {
			commit = proctest.Must(git.Create(ctx, repo(i), files))(t)
		} else {
			commit = proctest.Must(git.Commit(ctx, repo(i), gitserver.Main, gitserver.Edit{Write: files}))(t)
		}
		return pushed{uuid.NewString(), repo(i), commit}
	}
	announce := func(p pushed) error {
		return addChange(ctx, client, map[string]string{"id": p.id, "url": git.URL(p.repo), "after": p.commit})
	}

	for i := range repos {
		proctest.Must(0, announce(push(i, 1)))(t)
	}
	known := map[string]string{}
	for _, r := range proctest.AwaitResults(t, client, repos) {
		known[r.Repo.String()] = r.After
	}
	s.Replicate()
	s.CutOff()
	for i := range repos {
		proctest.Must(0, announce(push(i, 2)))(t)
	}
	proctest.AwaitResults(t, client, repos+repos/2)
	s.Master.Stop()
	proctest.Eventually(t, func() bool { return s.Promoted() || !isReady(address) }, "the worker is not ready without a master")
	last := map[string]pushed{} // by repository
	for i := range repos {
		change := push(i, 3)
		proctest.Eventually(t, func() bool { return announce(change) == nil }, "a master that accepts %s", change.id)
		last[change.repo] = change
	}

	master := s.Replica.Client()
	for _, r := range proctest.AwaitResults(t, master, 2*repos)[repos:] {
		change, before := last[r.Repo.String()], known[r.Repo.String()]
		delete(last, r.Repo.String())
		var files []string
		for _, f := range r.Files {
			files = append(files, f.Path)
		}
		want := "push-2 push-3"
		if r.Full { // the published tree shows that Redis may have lost several commits
			want = "push-1 push-2 push-3"
		}
		if r.Type != events.ResultSynced || r.Before != before || r.After != change.commit || strings.Join(files, " ") != want {
			t.Errorf("%s: %s from %q to %q, full: %t, %q; want everything after %s up to %s", r.Repo, r.Type, r.Before, r.After, r.Full, files, before, change.commit)
		}
		assertCheckout(t, filepath.Join(root, r.Repo.String()), change.commit)
	}
	if len(last) > 0 {
		t.Errorf("no result for %v", last)
	}
	proctest.AssertIdle(t, master)
	proctest.Eventually(t, func() bool { return isReady(address) }, "the worker is ready with the new master")
	if code := statusCode(t, s.URL()); code != 0 {
		t.Errorf("status: exit code %d", code)
	}
	changes := proctest.Must(master.XLen(ctx, events.DefaultNamespace.Changes()).Result())(t)
	results := proctest.Must(master.XLen(ctx, events.DefaultNamespace.Results()).Result())(t)
	if changes != 2*repos || results != 2*repos {
		t.Errorf("the new master has %d changes and %d results, want %d of each: those added to the old master are lost", changes, results, 2*repos)
	}
	for _, p := range workers {
		p.AwaitLog(`msg="Redis is back"`) // one worker may have done everything before the other reads again
		if code := p.Terminate(); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
		if back := strings.Count(p.Log.String(), `msg="Redis is back"`); back > 5 { // not at each attempt
			t.Errorf("logged %d times that Redis is back, want once or twice: %s", back, p.Log)
		}
	}
}
