package main

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
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
)

// redisAt opens a client of any topology that is closed with the test.
func redisAt(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	client := must(redisx.Parse(url, ""))(t).Open()
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestAServiceOnACluster(t *testing.T) {
	git, cluster, root := startGit(t), redistest.StartCluster(t), t.TempDir()
	l := newLoad(t, git, redisAt(t, cluster.URL()))
	l.repos, l.pushes = 6, 4
	for range 2 {
		start(t, "serve", "--redis", cluster.URL(), "--root", root, "--log-level", "warn")
	}
	if err := l.push(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.assertDone(t, root)
	used := 0
	for _, node := range cluster.Nodes {
		if must(node.Client().DBSize(t.Context()).Result())(t) > 0 {
			used++
		}
	}
	if used != 1 {
		t.Errorf("%d nodes have keys, want one: all keys share a hash tag", used)
	}
}

// TestTheNextChangeHealsWhatAFailoverLost promotes a replica that has missed a push to every repository:
// Redis forgets the changes, the results and the heads, while some trees have been published. The next
// push to a repository makes it good. A repository that has none would have to wait for the periodic
// reconcile.
func TestTheNextChangeHealsWhatAFailoverLost(t *testing.T) {
	if testing.Short() {
		t.Skip("a failover takes seconds")
	}
	const repos = 6
	ctx := context.Background()
	git, s, root := startGit(t), redistest.StartSentinel(t), t.TempDir()
	client := redisAt(t, s.URL())
	var workers []*process
	for range 2 {
		workers = append(workers, start(t, "serve", "--redis", s.URL(), "--root", root, "--lease", "2s"))
	}
	repo := func(i int) string { return fmt.Sprintf("acme/repo-%d", i) }
	push := func(i, n int) events.Change {
		t.Helper()
		files := map[string]string{fmt.Sprintf("push-%d", n): "x"}
		var commit string
		if n == 1 {
			commit = must(git.Create(ctx, repo(i), files))(t)
		} else {
			commit = must(git.Commit(ctx, repo(i), gitserver.Main, gitserver.Edit{Write: files}))(t)
		}
		return must(events.NewChange(events.Change{ID: uuid.NewString(), Source: "/test", URL: git.URL(repo(i)), After: commit}))(t)
	}
	announce := func(change events.Change) error { return publish(ctx, client, (&demo{}).config(), change) }

	for i := range repos {
		must(0, announce(push(i, 1)))(t)
	}
	known := map[string]string{}
	for _, r := range awaitResults(t, client, repos) {
		known[r.Repo.String()] = r.After
	}
	s.Replicate()
	s.CutOff()
	for i := range repos {
		must(0, announce(push(i, 2)))(t)
	}
	awaitResults(t, client, repos+repos/2)
	s.Master.Stop()
	answers := map[string]events.Change{}
	for i := range repos {
		change := push(i, 3)
		eventually(t, func() bool { return announce(change) == nil }, "a master that takes %s", change.ID)
		answers[change.Repo.String()] = change
	}

	master := s.Replica.Client()
	for _, r := range awaitResults(t, master, 2*repos)[repos:] {
		change, before := answers[r.Repo.String()], known[r.Repo.String()]
		delete(answers, r.Repo.String())
		var files []string
		for _, f := range r.Files {
			files = append(files, f.Path)
		}
		if r.Type != events.ResultSynced || r.Before != before || r.After != change.After || r.Full || strings.Join(files, " ") != "push-2 push-3" {
			t.Errorf("%s: %s from %q to %q, full: %t, %q; want all that came after %s up to %s", r.Repo, r.Type, r.Before, r.After, r.Full, files, before, change.After)
		}
		assertCheckout(t, filepath.Join(root, r.Repo.String()), change.After)
	}
	if len(answers) > 0 {
		t.Errorf("not answered: %v", answers)
	}
	assertIdle(t, master)
	changes := must(master.XLen(ctx, events.DefaultNamespace.Changes()).Result())(t)
	results := must(master.XLen(ctx, events.DefaultNamespace.Results()).Result())(t)
	if changes != 2*repos || results != 2*repos {
		t.Errorf("the new master has %d changes and %d results, want %d of each: what was added to the old one is lost", changes, results, 2*repos)
	}
	for _, p := range workers {
		if code := p.terminate(); code != exitDone {
			t.Errorf("exit code %d, want 0", code)
		}
		if back := strings.Count(p.log.String(), `msg="Redis is back"`); back < 1 || back > 2 {
			t.Errorf("said %d times that Redis is back, want once, or twice at most: %s", back, p.log)
		}
	}
}
