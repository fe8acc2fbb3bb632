package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redistest"
)

func TestTailFollowsWhatComes(t *testing.T) {
	ctx := context.Background()
	git, server, root := startGit(t), redistest.Start(t), t.TempDir()
	client := server.Client()
	head := must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	must(git.Create(ctx, "other/widgets", map[string]string{"a": "1"}))(t)
	start(t, "serve", "--roles", "worker", "--redis", server.URL(), "--root", root)
	follower := start(t, "tail", "Acme/", "--since", "1h", "--changes", "--count", "4", "--redis", server.URL())
	ask := func(repo, app string) {
		change := must(events.NewChange(events.Change{ID: "c-" + app, URL: git.URL(repo), App: app}))(t)
		must(0, publishChange(ctx, client, events.DefaultNamespace, change))(t)
	}
	ask("other/widgets", "nobody")
	ask("acme/widgets", "docs")
	follower.awaitLog("synced acme/widgets refs/heads/main docs nothing to " + head[:12] + ", 1 files")
	must(client.XAdd(ctx, &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: []string{"repo", "acme/widgets", "url", git.URL("acme/widgets")}}).Result())(t)
	if code := follower.ended(time.Minute); code != exitDone {
		t.Errorf("exit code %d", code)
	}
	said := follower.log.String()
	for _, want := range []string{"asked pushed acme/widgets docs c-docs", "asked plain acme/widgets", "unchanged at " + head[:12]} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in\n%s", want, said)
		}
	}
	if strings.Contains(said, "other/") {
		t.Errorf("another's repository in\n%s", said)
	}
	stdout, _, code := runLockstep(t, nil, "tail", "--since", "1h", "--count", "1", "--json", "--redis", server.URL())
	if decodeJSON(t, stdout)["specversion"] != "1.0" || code != exitDone {
		t.Errorf("exit code %d: %s", code, stdout)
	}
	forever := start(t, "tail", "--since", "1h", "--redis", server.URL())
	forever.awaitLog("synced acme/widgets")
	if code := forever.terminate(); code != exitDone {
		t.Errorf("interrupted, its exit code is %d", code)
	}
	if _, stderr, code := runLockstep(t, nil, "tail", "--redis", "redis://127.0.0.1:1"); code != exitUnavailable {
		t.Errorf("without Redis: exit code %d, %s", code, stderr)
	}
}
