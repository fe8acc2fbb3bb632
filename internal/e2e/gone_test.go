package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// TestGoneLeavesNothing has changes for repositories that do not exist, repositories that are watched and removed,
// and apps that watch another one for a while. After the safe time everything is as before.
func TestGoneLeavesNothing(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	missing, removed, apps := testenv.Soak(30, 3000), testenv.Soak(10, 240), testenv.Soak(10, 200)
	git, server, root := proctest.StartGit(t), redistest.StartReal(t), t.TempDir()
	client := server.Client()
	proctest.Must(git.Create(t.Context(), "acme/stays", map[string]string{"a": "1"}))(t)
	proctest.Start(t, "serve", "--redis", server.URL(), "--root", root, "--tree-grace", "1s", "--lease", "2s", "--log-level", "warn")
	registry := watch.NewRegistry(client, events.DefaultNamespace)
	watchFor := func(app, repo string) watch.Watch {
		w := watch.Watch{App: app, URL: git.URL("acme/stays"), Repo: proctest.Must(events.ParseRepoPath(repo))(t)}
		return proctest.Must(watch.New(w))(t)
	}
	stays := func(int) watch.Watch { return watchFor("stays", "acme/stays") }
	proctest.Must(registry.Put(t.Context(), stays(0)))(t)
	proctest.Eventually(t, func() bool { return given(t, client, stays, []int{0}) && idle(t, client) }, "the app was given a tree")
	proctest.Eventually(t, func() bool { // of the first garbage collection
		_, err := os.Stat(filepath.Join(root, ".lockstep/usage"))
		return err == nil
	}, "the usage is recorded")
	before := remainsOf(t, server, root)

	_, err := client.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i := range missing {
			repo := fmt.Sprintf("missing-%d/r%d", i%10, i)
			pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(),
				Values: []string{"repo", repo, "url", git.URL(repo)}})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, func() bool { return idle(t, client) }, "all are refused")
	for _, kind := range []struct {
		n    int
		made func(i int) watch.Watch
	}{
		{removed, func(i int) watch.Watch { return watchFor("docs", fmt.Sprintf("Made-%d/r%d", i%10, i)) }},
		{apps, func(i int) watch.Watch { return watchFor(fmt.Sprint("app-", i), "acme/stays") }},
	} {
		for batch := range slices.Chunk(slices.Collect(upTo(kind.n)), 40) {
			var keys []watch.Key
			for _, i := range batch {
				w := kind.made(i)
				proctest.Must(registry.Put(t.Context(), w))(t)
				keys = append(keys, w.Key())
			}
			proctest.Eventually(t, func() bool { return given(t, client, kind.made, batch) }, "each app was given a tree")
			for _, key := range keys {
				proctest.Must(registry.Remove(t.Context(), key))(t)
			}
		}
	}
	proctest.Eventually(t, func() bool { return idle(t, client) }, "all changes are settled")
	t.Logf("before %+v", before)
	begun := time.Now()
	last := remains{}
	for deadline := begun.Add(testenv.Soak(2*time.Minute, 6*time.Minute)); ; time.Sleep(time.Second) {
		now := remainsOf(t, server, root)
		if now != last {
			t.Logf("after %4.0f s %+v", time.Since(begun).Seconds(), now)
			last = now
		}
		if now == before {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("more is left than there was before")
		}
	}
}

func upTo(n int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

func given(t *testing.T, client redis.UniversalClient, made func(int) watch.Watch, batch []int) bool {
	t.Helper()
	for _, i := range batch {
		w := made(i)
		if client.HGet(t.Context(), events.DefaultNamespace.Repo(w.Repo), "given:refs/heads/main:"+w.App).Val() == "" {
			return false
		}
	}
	return true
}

func idle(t *testing.T, client redis.UniversalClient) bool {
	t.Helper()
	groups := proctest.Must(client.XInfoGroups(t.Context(), events.DefaultNamespace.Changes()).Result())(t)
	return len(groups) == 1 && groups[0].Lag == 0 && groups[0].Pending == 0
}

// remains is what a deployment keeps.
type remains struct {
	keys, forever int // in Redis, but for caches of a worker, and those of them without expiry
	failing       int64
	fields        int64 // of the state of acme/stays
	inodes, lines int   // on the volume, and of repos ls
}

func remainsOf(t *testing.T, server *redistest.Server, root string) (r remains) {
	t.Helper()
	client := server.Client()
	defer client.Close()
	for keys := client.Scan(t.Context(), 0, "*", 1000).Iterator(); keys.Next(t.Context()); {
		switch key := keys.Val(); key {
		case events.DefaultNamespace.Working(), events.DefaultNamespace.GC(), events.DefaultNamespace.Reconcile():
		default:
			if ttl := client.TTL(t.Context(), key).Val(); ttl == -1 {
				r.forever++
			}
			r.keys++
		}
	}
	stays := proctest.Must(events.ParseRepoPath("acme/stays"))(t)
	r.fields = client.HLen(t.Context(), events.DefaultNamespace.Repo(stays)).Val()
	r.failing = client.HLen(t.Context(), events.DefaultNamespace.Failing()).Val()
	_ = filepath.WalkDir(root, func(path string, _ fs.DirEntry, _ error) error {
		if !strings.Contains(path, "/acme/stays") {
			r.inodes++
		}
		return nil
	})
	out, _, code := proctest.RunLockstep(t, nil, "repos", "ls", "--redis", server.URL(), "--root", root, "-o", "json", "--limit", "10000")
	if code != term.ExitDone {
		t.Fatalf("exit code %d: %s", code, out)
	}
	r.lines = strings.Count(out, `"repo":`)
	return r
}
