package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
	views "lockstep/internal/view"
	"lockstep/internal/volume"
	"lockstep/tree"
)

// snippet returns the code block after the HTML comment with the name.
func snippet(t *testing.T, document, name string) string {
	t.Helper()
	text := string(proctest.Must(os.ReadFile(document))(t))
	_, rest, ok := strings.Cut(text, "<!-- "+name+" -->\n```")
	code, _, found := strings.Cut(rest, "\n```\n")
	_, code, hasCode := strings.Cut(code, "\n")
	if !ok || !found || !hasCode {
		t.Fatalf("%s has no %s", document, name)
	}
	return code + "\n"
}

// TestShellRecipeForReaders runs the shell script in docs/reading.md.
func TestShellRecipeForReaders(t *testing.T) {
	t.Parallel()
	requirePrograms(t, "realpath", "flock", "cat")
	script := filepath.Join(t.TempDir(), "in-tree.sh")
	proctest.Must(0, os.WriteFile(script, []byte(snippet(t, "../../docs/reading.md", "in-tree.sh")), 0o700))(t)
	for _, shell := range []string{"sh", "bash"} {
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		t.Run(shell, func(t *testing.T) {
			p := newPublished(t, "1")
			first, _ := p.sync()
			recipe := func(args ...string) *exec.Cmd {
				cmd := exec.Command(shell, append([]string{script}, args...)...)
				cmd.Env = append(os.Environ(), "LOCKSTEP_ROOT="+p.volume.Root())
				return cmd
			}
			c := converse(t, recipe("acme/widgets", "sh", "-c", `while read -r _; do echo "$(cat a) $(pwd)"; done`))
			for n := range 3 {
				if got, want := c.ask(""), "1 "+filepath.Join(p.volume.Root(), first.Tree); got != want {
					t.Errorf("after %d syncs the command reads %q, want %q", n, got, want)
				}
				p.push(fmt.Sprint("new ", n))
				p.sync()
			}
			proctest.Must(0, c.in.Close())(t)
			proctest.Must(0, c.cmd.Wait())(t)
			last, _ := p.sync()
			if _, err := os.Stat(filepath.Join(p.volume.Root(), first.Tree)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the tree of the finished command is still there: %v", err)
			}
			if out, err := recipe("acme/widgets", "cat", "a").CombinedOutput(); string(out) != "new 2" {
				t.Errorf("after the syncs it reads %q, %v", out, err)
			}
			if out, err := recipe("acme/gadgets", "echo", "run").CombinedOutput(); err == nil || strings.HasSuffix(string(out), "run\n") {
				t.Errorf("unpublished repository: %q, %v", out, err)
			}
			proctest.Must(0, os.Remove(filepath.Join(p.volume.Root(), last.Tree, ".git/lockstep-pin")))(t)
			if out, err := recipe("acme/widgets", "echo", "run").CombinedOutput(); err == nil || !strings.HasSuffix(string(out), "acme/widgets cannot be pinned\n") {
				t.Errorf("tree without a pin file: %q, %v", out, err)
			}
		})
	}
}

// A tree stays as long as a consumer group has not acknowledged a result that names it. The next sync then removes it.
// Trees of views are read like others.
func TestRecipesForReadersOfViews(t *testing.T) {
	t.Parallel()
	requirePrograms(t, "realpath", "flock", "cat")
	script := filepath.Join(t.TempDir(), "in-tree.sh")
	proctest.Must(0, os.WriteFile(script, []byte(snippet(t, "../../docs/reading.md", "in-tree.sh")), 0o700))(t)
	p := newPublished(t, "1")
	publish := func() events.Result {
		synced, _ := p.sync()
		p.fence++
		proctest.Must(0, p.volume.PublishSubtrees(t.Context(), volume.SubtreesRequest{
			Repo: synced.Repo, App: "argo", Path: synced.Path, Tree: synced.Tree, Fence: p.fence,
			Selections: proctest.Must(views.New(map[string][]string{"v": {"a"}}))(t),
		}))(t)
		return synced
	}
	synced := publish()
	name, root := "acme/widgets@~/argo/v", p.volume.Root()
	recipe := exec.Command("sh", script, name, "sh", "-c", `while read -r _; do echo "$(cat a)"; done`)
	recipe.Env = append(os.Environ(), "LOCKSTEP_ROOT="+root)
	c := converse(t, recipe)
	if got := c.ask(""); got != "1" {
		t.Errorf("read %q", got)
	}
	stdout, stderr, code := proctest.RunLockstep(t, nil, "exec", name, "--root", root, "--", "sh", "-c", "cat a; echo $LOCKSTEP_COMMIT $LOCKSTEP_REF; ls")
	if want := "1" + synced.After + " refs/heads/main\na\n"; code != 0 || strings.TrimSpace(stdout) != strings.TrimSpace(want) {
		t.Errorf("exit code %d, %q, want %q; %s", code, stdout, want, stderr)
	}
	p.push("2")
	publish()
	for range 3 {
		p.fence++
		proctest.Must(p.volume.GC(t.Context(), volume.GCRequest{Repo: synced.Repo, Fence: p.fence}))(t)
	}
	if got := c.ask(""); got != "1" { // pinned
		t.Errorf("read %q", got)
	}
	if stdout, stderr, code := proctest.RunLockstep(t, nil, "exec", name, "--root", root, "--", "cat", "a"); code != 0 || stdout != "2" {
		t.Errorf("exit code %d, %q: %s", code, stdout, stderr)
	}
	proctest.Must(0, c.in.Close())(t)
	proctest.Must(0, c.cmd.Wait())(t)
}

func TestServiceKeepsTreesOfUnacknowledgedResults(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	git, server, root := proctest.StartGit(t), redistest.Start(t), t.TempDir()
	proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	proctest.Start(t, "serve", "--root", root, "--redis", server.URL(), "--tree-grace", "0s")
	client, topic := server.Client(), events.DefaultNamespace.Results()
	proctest.Must(client.XGroupCreateMkStream(ctx, topic, "search", "0").Result())(t)
	sync := func(content string) {
		t.Helper()
		proctest.Must(git.Commit(ctx, "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": content}}))(t)
		if _, stderr, code := proctest.RunLockstep(t, nil, "sync", git.URL("acme/widgets"), "--redis", server.URL()); code != term.ExitDone {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
	}
	for _, content := range []string{"2", "3", "4"} {
		sync(content)
	}
	read := proctest.Must(client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "search", Consumer: "c", Streams: []string{topic, ">"}, Count: 1, Block: -1}).Result())(t)
	entry := read[0].Messages[0]
	result := proctest.DecodeResult(t, entry)
	named, err := tree.OpenResult(root, result)
	if err != nil {
		t.Fatalf("tree of an unacknowledged result: %v", err)
	}
	proctest.Must(0, named.Close())(t)
	proctest.Must(client.XAck(ctx, topic, "search", entry.ID).Result())(t)
	sync("5")
	if _, err := os.Stat(filepath.Join(root, result.Tree)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tree of an acknowledged result is still there: %v", err)
	}
}
