package e2e

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
)

// TestGCRemovesReplacedTrees checks that garbage collection removes replaced trees without a further sync.
func TestGCRemovesReplacedTrees(t *testing.T) {
	t.Parallel()
	ctx, server, root := context.Background(), redistest.Start(t), t.TempDir()
	client, git := server.Client(), proctest.StartGit(t)
	proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	serve := func(more ...string) *proctest.Process {
		return proctest.Start(t, append([]string{"serve", "--redis", server.URL(), "--root", root, "--log-level", "debug"}, more...)...)
	}
	quiet := serve("--tree-grace", "1h")
	sync := func(id string) {
		t.Helper()
		change := proctest.Must(events.NewChange(events.Change{ID: id, URL: git.URL("acme/widgets")}))(t)
		proctest.Must(0, app.PublishChange(ctx, client, events.DefaultNamespace, change))(t)
	}
	sync("c1")
	proctest.AwaitResults(t, client, 1)
	proctest.Must(git.Commit(ctx, "acme/widgets", "main", gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	sync("c2")
	proctest.AwaitResults(t, client, 2)
	trees := func() []string { // but for prepared ones
		return proctest.Must(filepath.Glob(filepath.Join(root, ".lockstep/repos/acme/widgets/trees/[0-9]*")))(t)
	}
	if found := trees(); len(found) != 2 {
		t.Fatalf("trees %v, want the current and the replaced one", found)
	}
	if code := quiet.Terminate(); code != term.ExitDone {
		t.Fatalf("exit code %d", code)
	}

	p := serve("--tree-grace", "1ms", "--listen", "127.0.0.1:0")
	p.AwaitLog("trees_dropped=1")

	if found := trees(); len(found) != 1 {
		t.Errorf("trees %v", found)
	}
	proctest.Eventually(t, func() bool { // a new claim every two seconds
		return strings.Contains(client.Get(ctx, events.DefaultNamespace.GC()).Val(), strconv.Itoa(p.Cmd.Process.Pid))
	}, "the remaining worker has claimed the garbage collection")
	address := p.ListenAddress("listening")
	for _, name := range []string{"lockstep_volume_repositories", "lockstep_volume_trees", "lockstep_volume_up"} {
		proctest.Eventually(t, func() bool { return samplesOf(t, address)[name] == 1 }, "%s is 1", name)
	}
	if code := p.Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}
}
