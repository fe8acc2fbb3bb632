package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/volume"
)

// published is a volume with a repository whose replaced trees have no grace period.
type published struct {
	t      *testing.T
	git    *gitserver.Server
	volume *volume.Volume
	fence  uint64
}

func newPublished(t *testing.T, content string) *published {
	p := &published{t: t, git: proctest.StartGit(t)}
	p.volume = proctest.Must(volume.OpenVolume(t.TempDir(), volume.Config{Grace: 1}))(t)
	t.Cleanup(p.volume.Close)
	proctest.Must(p.git.Create(t.Context(), "acme/widgets", map[string]string{"a": content}))(t)
	return p
}

// sync syncs the repository and returns the result, and a file with its document.
func (p *published) sync() (events.Result, string) {
	p.t.Helper()
	p.fence++
	repo := proctest.Must(events.ParseRepoPath("acme/widgets"))(p.t)
	res := proctest.Must(p.volume.Sync(p.t.Context(), volume.SyncRequest{Repo: repo, URL: p.git.URL("acme/widgets"), Fence: p.fence}))(p.t)
	result := events.Result{ID: "r", Type: events.ResultSynced, Source: "/test", Repo: repo, Ref: res.Ref, After: res.After, Path: res.Path, Tree: res.Tree, Fence: p.fence}
	file := filepath.Join(p.t.TempDir(), "result.json")
	proctest.Must(0, os.WriteFile(file, proctest.Must(json.Marshal(result))(p.t), 0o600))(p.t)
	return result, file
}

func (p *published) push(content string) {
	p.t.Helper()
	proctest.Must(p.git.Commit(p.t.Context(), "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": content}}))(p.t)
}

// conversation is a process that answers each line with a line.
type conversation struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func converse(t *testing.T, cmd *exec.Cmd) *conversation {
	t.Helper()
	c := &conversation{t: t, cmd: cmd, in: proctest.Must(cmd.StdinPipe())(t)}
	c.out = bufio.NewReader(proctest.Must(cmd.StdoutPipe())(t))
	cmd.Stderr = os.Stderr
	proctest.Must(0, cmd.Start())(t)
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return c
}

// ask sends a line and returns the reply.
func (c *conversation) ask(line string) string {
	c.t.Helper()
	proctest.Must(fmt.Fprintln(c.in, line))(c.t)
	return c.hear()
}

func (c *conversation) hear() string {
	c.t.Helper()
	return strings.TrimSpace(proctest.Must(c.out.ReadString('\n'))(c.t))
}

// answering prints the file a from the working directory and by path, and the commit, for each line it reads.
const answering = `while read -r _; do echo "$(cat a) $(cat "$LOCKSTEP_TREE/a") $LOCKSTEP_COMMIT"; done`

// requirePrograms skips the test unless all programs are in PATH.
func requirePrograms(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
}

func TestExecSeesOneCommit(t *testing.T) {
	t.Parallel()
	requirePrograms(t, "sh", "cat")
	for name, byResult := range map[string]bool{"by name": false, "by result": true} {
		t.Run(name, func(t *testing.T) {
			p := newPublished(t, "1")
			first, file := p.sync()
			args := []string{"exec", "acme/widgets"}
			if byResult {
				p.push("2") // the tree is replaced, but not recycled yet
				p.sync()
				args = []string{"exec", "--result", file}
			}
			c := converse(t, proctest.Command(t, append(args, "--root", p.volume.Root(), "--", "sh", "-c", answering)...))
			for n := range 3 {
				if got, want := c.ask(""), "1 1 "+first.After; got != want {
					t.Errorf("after %d syncs the command reads %q, want %q", n, got, want)
				}
				p.push(fmt.Sprintf("new %d", n))
				p.sync()
			}
			proctest.Must(0, c.in.Close())(t)
			proctest.Must(0, c.cmd.Wait())(t)
			p.sync()
			if _, err := os.Stat(filepath.Join(p.volume.Root(), first.Tree)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the tree of the finished command is still there: %v", err)
			}
		})
	}
}

func TestExecInRemovedTree(t *testing.T) {
	t.Parallel()
	p := newPublished(t, "1")
	_, file := p.sync()
	p.push("2")
	p.sync()
	p.sync()
	_, stderr, code := proctest.RunLockstep(t, nil, "exec", "--root", p.volume.Root(), "--result", file, "--", "true")
	if code != exitGone || !strings.Contains(stderr, "the tree is gone") {
		t.Errorf("exit code %d, want 3: %s", code, stderr)
	}
}

func TestExecReturnsExitCodeOfCommand(t *testing.T) {
	t.Parallel()
	requirePrograms(t, "sh", "true", "false")
	p := newPublished(t, "1")
	p.sync()
	run := func(args ...string) *exec.Cmd {
		return proctest.Command(t, append([]string{"exec", "acme/widgets", "--root", p.volume.Root(), "--"}, args...)...)
	}
	for want, args := range map[int][]string{
		0: {"true"}, 1: {"false"}, 42: {"sh", "-c", "exit 42"}, exitNotFound: {"no-such-command"}, exitNotRunning: {"./a"},
	} {
		cmd := run(args...)
		_ = cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%q: exit code %d, want %d", args, got, want)
		}
	}
	c := converse(t, run("sh", "-c", `trap 'echo asked to end; exit 7' TERM; echo ready; while :; do read -r _ || :; done`))
	if got := c.hear(); got != "ready" {
		t.Fatal(got)
	}
	proctest.Must(0, c.cmd.Process.Signal(syscall.SIGTERM))(t)
	_, _ = fmt.Fprintln(c.in) // a shell may run its trap only when read returns; it may also have ended by now
	if got := c.hear(); got != "asked to end" {
		t.Error(got)
	}
	if exit, ok := errors.AsType[*exec.ExitError](c.cmd.Wait()); !ok || exit.ExitCode() != 7 {
		t.Errorf("exit %v, want 7 from the command", exit)
	}
}
