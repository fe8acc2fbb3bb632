package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/gitserver"
	"lockstep/internal/redistest"
	"lockstep/internal/schedule"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

func TestReconcileFindsAndRepairs(t *testing.T) {
	ctx := context.Background()
	git, server, root := startGit(t), redistest.Start(t), t.TempDir()
	client := server.Client()
	registry := watch.NewRegistry(client, events.DefaultNamespace)
	where := []string{"--redis", server.URL(), "--root", root}
	start(t, append([]string{"serve", "--roles", "worker", "--patrol-every", "0s"}, where...)...)
	heads := map[string]string{}
	for _, name := range []string{"well", "forgotten", "lost", "orphan", "by-hand", "pushed"} {
		heads[name] = must(git.Create(ctx, "acme/"+name, map[string]string{"a": "1"}))(t)
		if name == "by-hand" {
			change := must(events.NewChange(events.Change{URL: git.URL("acme/by-hand")}))(t)
			must(0, publish(ctx, client, (&demo{}).config(), change))(t)
			continue
		}
		must(registry.Put(ctx, must(watch.New(watch.Watch{App: "docs", URL: git.URL("acme/" + name)}))(t)))(t)
	}
	path := func(name string) events.RepoPath { return must(events.ParseRepoPath("acme/" + name))(t) }
	states := state.NewStore(client, events.DefaultNamespace)
	main := must(events.ParseRef(gitserver.Main))(t)
	settled := func(names ...string) {
		t.Helper()
		eventually(t, func() bool {
			return !slices.ContainsFunc(names, func(name string) bool {
				known, err := states.Load(ctx, path(name))
				link, _ := os.ReadFile(filepath.Join(root, "acme", name, ".git", "lockstep-commit"))
				return err != nil || known.Head(main) != heads[name] || strings.TrimSpace(string(link)) != heads[name]
			})
		}, "%v are synced", names)
	}
	settled("well", "forgotten", "lost", "orphan", "by-hand", "pushed")
	quiet := func() bool { return isQuiet(ctx, client) }
	eventually(t, quiet, "all is settled")

	// What a Redis or a disk that loses things may leave.
	client.HDel(ctx, events.DefaultNamespace.Repo(path("forgotten")), "head:"+main.String())
	must(0, os.Remove(filepath.Join(root, "acme/lost")))(t)
	client.Del(ctx, events.DefaultNamespace.Watches()+"of:acme/orphan")
	client.ZRem(ctx, events.DefaultNamespace.Watches()+"index", "acme/orphan")
	heads["pushed"] = must(git.Commit(ctx, "acme/pushed", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)

	reconcile := func(flags ...string) schedule.Report {
		t.Helper()
		stdout, stderr, code := runLockstep(t, nil, append(append([]string{"reconcile", "--json"}, where...), flags...)...)
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
	for _, flags := range [][]string{{"--dry-run"}, nil} { // the second time with consequences
		if report := reconcile(flags...); !slices.Equal(texts(report), want) || report.Watched != 4 || report.Clones < 4 {
			t.Errorf("%v: %+v, want %q", flags, report, want)
		}
	}
	settled("well", "forgotten", "lost", "pushed")
	gone := func(name string) func() bool {
		return func() bool { _, err := os.Lstat(filepath.Join(root, "acme", name)); return os.IsNotExist(err) }
	}
	eventually(t, gone("orphan"), "the orphan is gone")
	eventually(t, quiet, "all is settled")
	if report := reconcile("--prune"); !slices.Equal(texts(report), []string{"acme/by-hand unwatched_clone removed"}) {
		t.Errorf("again, to prune: %+v", report)
	}
	eventually(t, gone("by-hand"), "what nobody ever watched is gone")
}

// isQuiet reports whether no change waits and none is being worked on.
func isQuiet(ctx context.Context, client redis.UniversalClient) bool {
	figures, err := stream.Stats(ctx, client, string(events.DefaultNamespace), events.DefaultNamespace.Changes())
	group, _ := figures.Group(workers)
	return err == nil && group.Lag == 0 && group.Pending == 0
}

// What is parked until a remote is well again does not put off the polls of the others.
func TestPollsWaitForWorkersAndNotForRemotes(t *testing.T) {
	ctx, client := context.Background(), redistest.StartReal(t).Client() // the embedded one cannot tell what was read
	topic := events.DefaultNamespace.Changes()
	waiting := func() int { return must(backlog(ctx, client, events.DefaultNamespace))(t) }
	if n := waiting(); n != 0 {
		t.Errorf("%d wait before there is a stream", n)
	}
	subscriber := must(stream.NewSubscriber(stream.SubscriberConfig{Redis: client, Prefix: string(events.DefaultNamespace), Group: workers}))(t)
	messages := must(subscriber.Subscribe(ctx, topic))(t)
	for range 3 {
		must(0, publish(ctx, client, (&demo{}).config(), must(events.NewChange(events.Change{URL: "https://example.com/acme/widgets.git"}))(t)))(t)
		msg := <-messages
		delivery, _ := stream.DeliveryOf(msg)
		must(0, delivery.Nack(ctx, time.Hour, false))(t)
		msg.Ack()
	}
	if n := waiting(); n != 0 {
		t.Errorf("%d wait, want none: all are parked", n)
	}
	must(0, subscriber.Close())(t)
	for range 3 {
		must(0, publish(ctx, client, (&demo{}).config(), must(events.NewChange(events.Change{URL: "https://example.com/acme/widgets.git"}))(t)))(t)
	}
	if n := waiting(); n != 3 {
		t.Errorf("%d wait, want those that nobody has read", n)
	}
}

func TestNothingIsRemovedWhenTheRegistryIsLost(t *testing.T) {
	ctx := context.Background()
	git, server, root := startGit(t), redistest.Start(t), t.TempDir()
	client := server.Client()
	must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	registry := watch.NewRegistry(client, events.DefaultNamespace)
	start(t, "serve", "--roles", "worker", "--redis", server.URL(), "--root", root)
	must(registry.Put(ctx, must(watch.New(watch.Watch{App: "docs", URL: git.URL("acme/widgets")}))(t)))(t)
	awaitResults(t, client, 2) // that it was polled, and synced
	for _, key := range must(client.Keys(ctx, events.DefaultNamespace.Watches()+"*").Result())(t) {
		client.Del(ctx, key)
	}
	stdout, stderr, code := runLockstep(t, nil, "reconcile", "--redis", server.URL(), "--root", root)
	if code != 0 || !strings.Contains(stdout, "orphan") || !strings.Contains(stdout, "reported") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

func TestAMissedWebhookCostsOneInterval(t *testing.T) {
	ctx := context.Background()
	git, server, root := startGit(t), redistest.Start(t), t.TempDir()
	client := server.Client()
	must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	for range 2 { // both schedule
		start(t, "serve", "--redis", server.URL(), "--root", root, "--poll-every", "1s")
	}
	w := must(watch.New(watch.Watch{App: "docs", URL: git.URL("acme/widgets")}))(t)
	must(watch.NewRegistry(client, events.DefaultNamespace).Put(ctx, w))(t)
	awaitResults(t, client, 2)
	head := must(git.Commit(ctx, "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	eventually(t, func() bool {
		content, _ := os.ReadFile(filepath.Join(root, "acme/widgets/.git/lockstep-commit"))
		return strings.TrimSpace(string(content)) == head
	}, "the push is published")
	for _, r := range awaitResults(t, client, 4) {
		if r.Type == events.ResultFailed {
			t.Errorf("a poll fails: %+v", r)
		}
	}
}
