package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/schedule"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

func TestReconcileFindsAndRepairs(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	git, server, root := proctest.StartGit(t), redistest.Start(t), t.TempDir()
	client := server.Client()
	registry := watch.NewRegistry(client, events.DefaultNamespace)
	where := []string{"--redis", server.URL(), "--root", root}
	proctest.Start(t, append([]string{"serve", "--roles", "worker"}, where...)...)
	heads := map[string]string{}
	for _, name := range []string{"well", "forgotten", "lost", "orphan", "by-hand", "pushed"} {
		heads[name] = proctest.Must(git.Create(ctx, "acme/"+name, map[string]string{"a": "1"}))(t)
		if name == "by-hand" {
			change := proctest.Must(events.NewChange(events.Change{URL: git.URL("acme/by-hand")}))(t)
			proctest.Must(0, app.PublishChange(ctx, client, events.DefaultNamespace, change))(t)
			continue
		}
		proctest.Must(registry.Put(ctx, proctest.Must(watch.New(watch.Watch{App: "docs", URL: git.URL("acme/" + name)}))(t)))(t)
	}
	path := func(name string) events.RepoPath { return proctest.Must(events.ParseRepoPath("acme/" + name))(t) }
	states := state.NewStore(client, events.DefaultNamespace)
	main := proctest.Must(events.ParseRef(gitserver.Main))(t)
	settled := func(names ...string) {
		t.Helper()
		proctest.Eventually(t, func() bool {
			return !slices.ContainsFunc(names, func(name string) bool {
				known, err := states.Load(ctx, path(name))
				link, _ := os.ReadFile(filepath.Join(root, "acme", name, ".git", "lockstep-commit"))
				return err != nil || known.Head(main) != heads[name] || strings.TrimSpace(string(link)) != heads[name]
			})
		}, "%v are synced", names)
	}
	settled("well", "forgotten", "lost", "orphan", "by-hand", "pushed")
	quiet := func() bool { return isQuiet(ctx, client) }
	proctest.Eventually(t, quiet, "all is settled")

	// Simulate lost writes in Redis and on disk.
	client.HDel(ctx, events.DefaultNamespace.Repo(path("forgotten")), "head:"+main.String())
	proctest.Must(0, os.Remove(filepath.Join(root, "acme/lost")))(t)
	client.Del(ctx, events.DefaultNamespace.Watches()+"of:acme/orphan")
	client.ZRem(ctx, events.DefaultNamespace.Watches()+"index", "acme/orphan")
	heads["pushed"] = proctest.Must(git.Commit(ctx, "acme/pushed", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)

	reconcile := func(flags ...string) schedule.Report {
		t.Helper()
		stdout, stderr, code := proctest.RunLockstep(t, nil, append(append([]string{"reconcile", "--json"}, where...), flags...)...)
		var report schedule.Report
		if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 0 {
			t.Fatalf("exit code %d, %v\n%s", code, err, stderr)
		}
		return report
	}
	texts := func(report schedule.Report) (found []string) {
		for _, f := range report.Findings {
			found = append(found, fmt.Sprintf("%s %s %s", f.Repo, f.Kind, f.Asked))
		}
		slices.Sort(found)
		return found
	}
	want := []string{"acme/by-hand unwatched_clone ", "acme/forgotten drift due", "acme/lost drift due", "acme/orphan orphan removed"}
	for _, flags := range [][]string{{"--dry-run"}, nil} {
		if report := reconcile(flags...); !slices.Equal(texts(report), want) || report.Watched != 4 || report.Clones < 4 {
			t.Errorf("%v: %+v, want %q", flags, report, want)
		}
	}
	settled("well", "forgotten", "lost", "pushed")
	gone := func(name string) func() bool {
		return func() bool { _, err := os.Lstat(filepath.Join(root, "acme", name)); return os.IsNotExist(err) }
	}
	proctest.Eventually(t, gone("orphan"), "the orphan is gone")
	proctest.Eventually(t, quiet, "all is settled")
	if report := reconcile("--prune"); !slices.Equal(texts(report), []string{"acme/by-hand unwatched_clone removed"}) {
		t.Errorf("with --prune: %+v", report)
	}
	proctest.Eventually(t, gone("by-hand"), "the unwatched clone is gone")
}

// isQuiet reports whether no change is waiting or in progress.
func isQuiet(ctx context.Context, client redis.UniversalClient) bool {
	figures, err := stream.Stats(ctx, client, string(events.DefaultNamespace), events.DefaultNamespace.Changes())
	group, _ := figures.Group(events.WorkersGroup)
	return err == nil && group.Lag == 0 && group.Pending == awaited(ctx, client)
}

// awaited returns how many changes wait for commits that were announced.
func awaited(ctx context.Context, client redis.UniversalClient) (n int64) {
	keys, _ := client.Keys(ctx, "lockstep:{0}:repo:*").Result()
	for _, key := range keys {
		var a state.Awaited
		_ = json.Unmarshal([]byte(client.HGet(ctx, key, "awaited").Val()), &a)
		n += int64(len(a.Commits))
	}
	return n
}
