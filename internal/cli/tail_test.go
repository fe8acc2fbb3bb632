package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
)

func TestTailFollowsStreams(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	git, server, root := proctest.StartGit(t), redistest.Start(t), t.TempDir()
	client := server.Client()
	head := proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	proctest.Must(git.Create(ctx, "other/widgets", map[string]string{"a": "1"}))(t)
	proctest.Start(t, "serve", "--roles", "worker", "--redis", server.URL(), "--root", root)
	follower := proctest.Start(t, "tail", "Acme/", "--since", "1h", "--changes", "--count", "4", "--redis", server.URL())
	publish := func(repo, name string) {
		change := proctest.Must(events.NewChange(events.Change{ID: "c-" + name, URL: git.URL(repo), App: name}))(t)
		proctest.Must(0, app.PublishChange(ctx, client, events.DefaultNamespace, change))(t)
	}
	publish("other/widgets", "other")
	publish("acme/widgets", "docs")
	follower.AwaitLog("synced acme/widgets refs/heads/main docs nothing to " + head[:12] + ", 1 files")
	proctest.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: []string{"repo", "acme/widgets", "url", git.URL("acme/widgets")}}).Result())(t)
	if code := follower.AwaitExit(time.Minute); code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}
	output := follower.Log.String()
	for _, want := range []string{"asked pushed acme/widgets docs c-docs", "asked plain acme/widgets", "unchanged at " + head[:12]} {
		if !strings.Contains(output, want) {
			t.Errorf("no %q in\n%s", want, output)
		}
	}
	if strings.Contains(output, "other/") {
		t.Errorf("the filtered repository is in\n%s", output)
	}
	stdout, _, code := proctest.RunLockstep(t, nil, "tail", "--since", "1h", "--count", "1", "--json", "--redis", server.URL())
	if proctest.DecodeJSON(t, stdout)["specversion"] != "1.0" || code != term.ExitDone {
		t.Errorf("exit code %d: %s", code, stdout)
	}
	forever := proctest.Start(t, "tail", "--since", "1h", "--redis", server.URL())
	forever.AwaitLog("synced acme/widgets")
	if code := forever.Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	if _, stderr, code := proctest.RunLockstep(t, nil, "tail", "--redis", "redis://127.0.0.1:1"); code != term.ExitUnavailable {
		t.Errorf("without Redis: exit code %d, %s", code, stderr)
	}
}
