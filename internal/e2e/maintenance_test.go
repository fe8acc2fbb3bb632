package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// TestVolumeMaintenanceCommands adopts a clone, and removes replaced trees, while the service runs and offline.
func TestVolumeMaintenanceCommands(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	ctx, server, root := context.Background(), redistest.Start(t), t.TempDir()
	git := proctest.StartGit(t)
	proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1", "b": "1"}))(t)
	path := filepath.Join(root, "acme/widgets")
	proctest.Must(0, exec.Command("git", "clone", "--quiet", git.URL("acme/widgets"), path).Run())(t)
	proctest.Must(0, os.WriteFile(filepath.Join(path, "mine"), []byte("mine"), 0o644))(t)
	lockstep := func(code int, args ...string) string {
		t.Helper()
		stdout, stderr, got := proctest.RunLockstep(t, nil, args...)
		if got != code {
			t.Fatalf("lockstep %s: exit code %d, want %d: %s%s", strings.Join(args, " "), got, code, stdout, stderr)
		}
		return stdout + stderr
	}
	online := []string{"--redis", server.URL(), "--root", root}
	with := func(args ...string) []string { return append(args, online...) }
	serving := proctest.Start(t, with("serve", "--log-level", "error")...)
	sync := []string{"sync", git.URL("acme/widgets"), "--redis", server.URL()}
	lockstep(term.ExitDone, sync...)
	proctest.Must(git.Commit(ctx, "acme/widgets", "main", gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	lockstep(term.ExitDone, sync...)

	if out := lockstep(term.ExitDone, with("repos", "gc", "Acme/Widgets")...); !strings.Contains(out, "REPOSITORY") || !strings.Contains(out, "Acme/Widgets") {
		t.Errorf("gc:\n%s", out)
	}
	shown := proctest.DecodeJSON(t, lockstep(term.ExitDone, with("repos", "show", "acme/widgets", "--json")...))
	disk, _ := shown["volume"].(map[string]any)
	if disk["trees"] != 2.0 || disk["store"] != 1.0 || disk["bytes"].(float64) < 4096 || disk["files"].(float64) < 10 {
		t.Errorf("show: %v", shown)
	}
	kept := disk["adopted"].([]any)[0].(map[string]any)
	if content := proctest.Must(os.ReadFile(filepath.Join(root, kept["path"].(string), "mine")))(t); string(content) != "mine" || kept["bytes"].(float64) == 0 {
		t.Errorf("adopted: %v", kept)
	}
	if out := lockstep(term.ExitDone, with("repos", "show", "acme/widgets")...); !strings.Contains(out, "adopted clone") || !strings.Contains(out, "generation 1") {
		t.Errorf("show:\n%s", out)
	}
	if out := lockstep(term.ExitDone, with("repos", "ls", "-o", "wide")...); !strings.Contains(out, "ADOPTED") || !strings.Contains(out, "KiB") {
		t.Errorf("ls:\n%s", out)
	}
	if out := lockstep(term.ExitDone, "repos", "ls", "-o", "wide", "--redis", server.URL(), "--root", t.TempDir()); strings.Contains(out, "ADOPTED") || !strings.Contains(out, "acme/widgets") {
		t.Errorf("ls without the volume:\n%s", out)
	}

	binding := filepath.Join(root, ".lockstep/repos/acme/widgets/repo.json")
	bound := proctest.Must(os.ReadFile(binding))(t)
	proctest.Must(0, os.WriteFile(binding, bound[:10], 0o644))(t)
	if out := lockstep(term.ExitDone, with("repos", "ls", "-o", "wide")...); !strings.Contains(out, "repo.json is damaged") || !strings.Contains(out, "closed") {
		t.Errorf("ls of a damaged repository:\n%s", out)
	}
	proctest.Must(0, os.WriteFile(binding, bound, 0o644))(t)

	if code := serving.Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}
	if out := lockstep(term.ExitDone, "repos", "gc", "--all", "--offline", "--root", root, "--tree-grace", "0s"); !strings.Contains(out, "acme/widgets") {
		t.Errorf("gc --offline:\n%s", out)
	}
	if trees := proctest.Must(filepath.Glob(filepath.Join(root, ".lockstep/repos/acme/widgets/trees/[0-9]*")))(t); len(trees) != 2 { // results name them, for at least a minute
		t.Errorf("trees %v", trees)
	}
	lockstep(term.ExitDone, "repos", "verify", "--all", "--offline", "--root", root)
}

// TestVerifyIgnoresRepositoryRemovedMeanwhile removes a repository while verify waits for its lease.
func TestVerifyIgnoresRepositoryRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	ctx, server, root := context.Background(), redistest.Start(t), t.TempDir()
	git := proctest.StartGit(t)
	vol := proctest.Must(volume.OpenVolume(root, volume.Config{}))(t)
	defer vol.Close()
	for _, name := range []string{"acme/widgets", "acme/gadgets"} {
		proctest.Must(git.Create(ctx, name, map[string]string{"a": "1"}))(t)
		repo := proctest.Must(events.ParseRepoPath(name))(t)
		proctest.Must(vol.Sync(ctx, volume.SyncRequest{Repo: repo, URL: git.URL(name), Fence: 1}))(t)
	}
	gone := proctest.Must(events.ParseRepoPath("acme/gadgets"))(t)
	client, namespace := server.Client(), events.DefaultNamespace
	locker := proctest.Must(locking.New(locking.Config{Redis: client, Prefix: namespace.Locks(), Worker: "w1"}))(t)
	defer locker.Close(ctx)
	inspector := locking.NewInspector(client, namespace.Locks())
	var verify *proctest.Process
	proctest.Must(0, locker.Do(ctx, locking.Request{Key: gone.Key(), Floor: 1}, func(ctx context.Context, lease *locking.Lease) error {
		verify = proctest.Start(t, "repos", "verify", "--all", "--json", "--redis", server.URL(), "--root", root)
		proctest.Eventually(t, func() bool { return len(proctest.Must(inspector.Status(ctx, gone.Key()))(t).Waiters) > 0 }, "verify waits for %s", gone)
		_, err := vol.Remove(ctx, volume.RemoveRequest{Repo: gone, Fence: lease.Fence(), Force: true})
		return err
	}))(t)
	if code := verify.AwaitExit(time.Minute); code != term.ExitDone || !strings.Contains(verify.Log.String(), "acme/widgets") || strings.Contains(verify.Log.String(), "acme/gadgets") {
		t.Errorf("exit code %d, want 0 and only the remaining repository: %s", code, verify.Log)
	}
}
