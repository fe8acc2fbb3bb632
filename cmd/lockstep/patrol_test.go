package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/redistest"
)

// TestAPatrolDropsWhatIsOver has two workers of which one patrols. No sync tidies the repository.
func TestAPatrolDropsWhatIsOver(t *testing.T) {
	ctx, server, root := context.Background(), redistest.Start(t), t.TempDir()
	client, git := server.Client(), startGit(t)
	must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	serve := func(more ...string) *process {
		return start(t, append([]string{"serve", "--redis", server.URL(), "--root", root, "--log-level", "debug"}, more...)...)
	}
	quiet := serve("--patrol-every", "0s", "--tree-grace", "1h")
	sync := func(id string) {
		t.Helper()
		change := must(events.NewChange(events.Change{ID: id, URL: git.URL("acme/widgets")}))(t)
		if err := publish(ctx, client, (&demo{}).config(), change); err != nil {
			t.Fatal(err)
		}
	}
	sync("c1")
	awaitResults(t, client, 1)
	must(git.Commit(ctx, "acme/widgets", "main", gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	sync("c2")
	awaitResults(t, client, 2)
	trees := filepath.Join(root, ".lockstep/repos/acme/widgets/trees")
	if entries := must(os.ReadDir(trees))(t); len(entries) != 2 {
		t.Fatalf("trees %v, want the replaced one as well", entries)
	}
	if code := quiet.terminate(); code != exitDone {
		t.Fatalf("exit code %d", code)
	}

	p := serve("--patrol-every", "1s", "--tree-grace", "1ms", "--tree-keep", "0s", "--listen", "127.0.0.1:0")
	p.awaitLog("trees_dropped=1")

	if entries := must(os.ReadDir(trees))(t); len(entries) != 1 {
		t.Errorf("trees %v", entries)
	}
	eventually(t, func() bool { // a turn is over after a second, and then there is the next
		return strings.Contains(client.Get(ctx, events.DefaultNamespace.Patrol()).Val(), strconv.Itoa(p.cmd.Process.Pid))
	}, "the patrol is held by the worker that is left")
	response := must(http.Get("http://" + p.listening("listening") + "/metrics"))(t)
	defer response.Body.Close()
	metrics := string(must(io.ReadAll(response.Body))(t))
	for _, want := range []string{"lockstep_volume_repositories 1\n", "lockstep_volume_trees 1\n", "lockstep_volume_up 1\n"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics do not say %q", want)
		}
	}
	if code := p.terminate(); code != exitDone {
		t.Errorf("exit code %d", code)
	}
}
