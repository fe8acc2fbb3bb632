package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
)

// TestWorkerPreparesNextTree pushes three times. After the second push the worker prepares a tree, which the third one publishes.
// The last push is synced by a command, which prepares nothing.
func TestWorkerPreparesNextTree(t *testing.T) {
	t.Parallel()
	ctx, server, root := context.Background(), redistest.Start(t), t.TempDir()
	client, git := server.Client(), proctest.StartGit(t)
	p := proctest.Start(t, "serve", "--redis", server.URL(), "--root", root, "--slots", "1")
	proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "0", "same": "same"}))(t)
	push := func(n int) {
		t.Helper()
		proctest.Must(git.Commit(ctx, "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": fmt.Sprint(n)}}))(t)
	}
	pushed := func(n int) {
		t.Helper()
		push(n)
		change := proctest.Must(events.NewChange(events.Change{ID: fmt.Sprint("c", n), URL: git.URL("acme/widgets")}))(t)
		proctest.Must(0, app.PublishChange(ctx, client, events.DefaultNamespace, change))(t)
		proctest.AwaitResults(t, client, n)
	}
	prepared := func() []string {
		return proctest.Must(filepath.Glob(filepath.Join(root, ".lockstep/repos/acme/widgets/prepared/*")))(t)
	}
	inode := func(path string) uint64 {
		t.Helper()
		return proctest.Must(os.Stat(path))(t).Sys().(*syscall.Stat_t).Ino
	}
	pushed(1)
	pushed(2)
	proctest.Eventually(t, func() bool { return len(prepared()) == 1 }, "the next tree is prepared")
	next := inode(prepared()[0])
	pushed(3)
	if inode(filepath.Join(root, "acme/widgets")) != next {
		t.Error("the third push did not publish the prepared tree")
	}
	proctest.Eventually(t, func() bool { return len(prepared()) == 1 }, "the tree after that is prepared")
	if code := p.Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}
	push(4)
	if _, stderr, code := proctest.RunLockstep(t, nil, "sync", git.URL("acme/widgets"), "--root", root); code != term.ExitDone {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if left := prepared(); len(left) != 0 {
		t.Errorf("the command has prepared %v", left)
	}
	if content := string(proctest.Must(os.ReadFile(filepath.Join(root, "acme/widgets/a")))(t)); content != "4" {
		t.Errorf("published %q", content)
	}
}
