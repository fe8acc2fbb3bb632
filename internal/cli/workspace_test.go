package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// newWorkspaces is newPublished with a remote that accepts pushes and a first sync. Commands get a scratch folder and a home of
// their own. It skips the test under the race detector, which workspace.txtar tries.
func newWorkspaces(t *testing.T, content string) (p *published, env []string) {
	t.Helper()
	testenv.SkipUnderRace(t)
	requirePrograms(t, "sh", "git")
	p = newPublished(t, content)
	t.Cleanup(func() { proctest.UnmountBelow(filepath.Dir(p.volume.Root())) })
	proctest.Must(p.git.Git(t.Context(), "acme/widgets", "", "config", "http.receivepack", "true"))(t)
	p.sync()
	home, scratch := t.TempDir(), t.TempDir()
	proctest.Must(0, os.WriteFile(filepath.Join(home, ".gitconfig"), []byte("[user]\n\tname = Someone\n\temail = someone@example.com\n"), 0o644))(t)
	return p, append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "TMPDIR="+scratch, "LOCKSTEP_ROOT="+p.volume.Root())
}

func scratchOf(env []string) (dir string) {
	for _, pair := range env {
		if value, ok := strings.CutPrefix(pair, "TMPDIR="); ok {
			dir = value
		}
	}
	return dir
}

func workspaceCommand(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := proctest.Command(t, append([]string{"workspace"}, args...)...)
	cmd.Env = env
	return cmd
}

// inWorkspace runs a shell script in a workspace and returns its output.
func inWorkspace(t *testing.T, env []string, script string, flags ...string) string {
	t.Helper()
	cmd := workspaceCommand(t, env, append(append([]string{"exec", "acme/widgets"}, flags...), "--", "sh", "-ec", script)...)
	return output(t, cmd)
}

// gitIn returns a function that runs git in a folder and returns its output.
func gitIn(t *testing.T, env []string, dir string) func(args ...string) string {
	return func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
		cmd.Env = env
		return output(t, cmd)
	}
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s%s", cmd.Args, err, out, &errs)
	}
	return strings.TrimSpace(string(out))
}

// requireOverlay skips the test if no overlay can be mounted here.
func requireOverlay(t *testing.T, env []string) {
	t.Helper()
	cmd := workspaceCommand(t, env, "exec", "acme/widgets", "--kind", "overlay", "--", "true")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("%s", out)
	}
}

var bothKinds = []string{"auto", "copy"}

func TestWorkspaceKeepsItsTree(t *testing.T) {
	t.Parallel()
	for _, kind := range bothKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p, env := newWorkspaces(t, "1")
			c := converse(t, workspaceCommand(t, env, "exec", "acme/widgets", "--kind", kind, "--", "sh", "-c",
				`while read -r line; do echo "$line" >> a; echo "$(tr '\n' ' ' <a)$(git diff --numstat | tr '\t' ' ') $(cat "$LOCKSTEP_TREE/a")"; done`))
			for n, want := range []string{"1x 1 1 a 1", "1x x 2 1 a 1", "1x x x 3 1 a 1"} {
				if got := c.ask("x"); got != want {
					t.Errorf("after %d syncs the command reads %q, want %q", n, got, want)
				}
				p.push(fmt.Sprint("new ", n))
				p.sync()
			}
			proctest.Must(0, c.in.Close())(t)
			proctest.Must(0, c.cmd.Wait())(t)
			if left := proctest.Must(os.ReadDir(scratchOf(env)))(t); len(left) > 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
}

func TestWorkspacesDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	_, env := newWorkspaces(t, "1")
	var conversations []*conversation
	for range 5 {
		conversations = append(conversations, converse(t, workspaceCommand(t, env, "exec", "acme/widgets", "--", "sh", "-c",
			`while read -r line; do echo "$line" >a; echo "$line" >"new-$line"; rm -f b; echo $(cat a) new-*; done`)))
	}
	var work sync.WaitGroup
	for i, c := range conversations {
		work.Go(func() {
			if got, want := c.ask(fmt.Sprint(i)), fmt.Sprintf("%d new-%d", i, i); got != want {
				t.Errorf("workspace %d sees %q, want %q", i, got, want)
			}
		})
	}
	work.Wait()
	if got := inWorkspace(t, env, `cat a; ls; cat "$LOCKSTEP_TREE/a"; ls "$LOCKSTEP_TREE"`); got != "1a\n1a" {
		t.Errorf("a new one, and the tree, have %q", got)
	}
}

// Git trusts a file of the same size and second as in the index.
func TestWorkspaceOfFreshTreeSeesEditOfSameSize(t *testing.T) {
	t.Parallel()
	p, env := newWorkspaces(t, "0")
	for _, kind := range bothKinds {
		for n := range testenv.Soak(2, 6) {
			p.push(fmt.Sprint(n % 10))
			p.sync()
			if got := inWorkspace(t, env, "git status --porcelain; printf x >a; git status --porcelain", "--kind", kind); got != "M a" {
				t.Errorf("%s: git reports %q, want the edited file", kind, got)
			}
		}
	}
}

func TestWorkspacePushesWithCredentialsOfUser(t *testing.T) {
	t.Parallel()
	for _, kind := range bothKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p, env := newWorkspaces(t, "1")
			p.git.AcceptTokens("acme/widgets", "s3cret-of-user")
			helper := `!f() { echo username=u; echo password=s3cret-of-user; }; f`
			out := inWorkspace(t, env, fmt.Sprintf(`git config --global credential.helper '%s'
				echo 2 >a; git commit -qam "from a workspace"; git push -q origin HEAD:refs/heads/topic; git status -sb; git fsck`, helper), "--kind", kind)
			if out != "## main...origin/main [ahead 1]" {
				t.Error(out)
			}
			if got := proctest.Must(p.git.Git(t.Context(), "acme/widgets", "", "show", "topic:a"))(t); got != "2" {
				t.Errorf("pushed %q", got)
			}
			if config := inWorkspace(t, env, "cat .git/config", "--kind", kind); strings.Contains(config, "s3cret") || !strings.Contains(config, p.git.URL("acme/widgets")) {
				t.Errorf("the configuration has another URL, or a secret:\n%s", config)
			}
		})
	}
}

// The remote has moved on: a workspace of a shallow tree pushes to a new branch, fetches and rebases.
func TestShallowWorkspaceBehindItsRemote(t *testing.T) {
	t.Parallel()
	p, env := newWorkspaces(t, "1")
	for n := range 3 {
		p.push(fmt.Sprint(n))
	}
	p.sync()
	c := converse(t, workspaceCommand(t, env, "exec", "acme/widgets", "--", "sh", "-c", `while read -r line; do eval "$line" 2>&1 | tr '\n' ' '; echo; done`))
	if got := c.ask("git rev-parse --is-shallow-repository; echo 1 >b; git add b; git commit -qm b; git log --format=%s"); !strings.HasPrefix(got, "true b ") {
		t.Fatal(got)
	}
	for n := range 3 {
		p.push(fmt.Sprint("later ", n))
		p.sync() // the store now has commits whose parents it does not have
	}
	for _, step := range []string{
		"git push -q origin HEAD:refs/heads/topic", "git fetch -q", "git rebase -q origin/main", "git push -q origin HEAD:main", "git fsck --connectivity-only --no-dangling", "git status --porcelain",
	} {
		if got := c.ask(step); got != "" {
			t.Errorf("%s: %s", step, got)
		}
	}
	if got := proctest.Must(p.git.Git(t.Context(), "acme/widgets", "", "show", "main:a"))(t) + proctest.Must(p.git.Git(t.Context(), "acme/widgets", "", "show", "main:b"))(t); got != "later 21" {
		t.Errorf("main has %q", got)
	}
	for _, ref := range []string{"main", "topic"} {
		proctest.Must(p.git.Git(t.Context(), "acme/widgets", "", "fsck", "--connectivity-only", ref))(t)
	}
}

func TestWorkspacePassesOnSignals(t *testing.T) {
	t.Parallel()
	_, env := newWorkspaces(t, "1")
	for _, kind := range bothKinds {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
			if signal.Ignored(s) { // as under nohup
				continue
			}
			c := converse(t, workspaceCommand(t, env, "exec", "acme/widgets", "--kind", kind, "--",
				"sh", "-c", `trap 'echo asked to end; exit 7' TERM INT HUP; echo ready; while :; do read -r _ || :; done`))
			if got := c.hear(); got != "ready" {
				t.Fatal(got)
			}
			proctest.Must(0, c.cmd.Process.Signal(s))(t)
			_, _ = fmt.Fprintln(c.in)
			if got := c.hear(); got != "asked to end" {
				t.Error(got)
			}
			if exit, ok := errors.AsType[*exec.ExitError](c.cmd.Wait()); !ok || exit.ExitCode() != 7 {
				t.Errorf("%s: exit %v, want 7 from the command", s, exit)
			}
		}
		for _, s := range []syscall.Signal{
			syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGABRT, syscall.SIGSEGV, syscall.SIGUSR1, syscall.SIGPIPE, syscall.SIGKILL,
		} {
			if signal.Ignored(s) {
				continue
			}
			out, err := workspaceCommand(t, env, "exec", "acme/widgets", "--kind", kind, "--", "sh", "-c", fmt.Sprintf("kill -%d $$", s)).CombinedOutput()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 128+int(s) || len(out) > 0 {
				t.Errorf("%s: ended by %v: %s", s, err, out)
			}
		}
	}
	if left := proctest.Must(os.ReadDir(scratchOf(env)))(t); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestWorkspaceUnderNohup(t *testing.T) {
	t.Parallel()
	requirePrograms(t, "nohup")
	_, env := newWorkspaces(t, "1")
	for _, kind := range bothKinds {
		cmd := exec.Command("nohup", proctest.Must(exec.LookPath("lockstep"))(t), "workspace", "exec", "acme/widgets", "--kind", kind, "--", "sh", "-c", `while read -r line; do echo "$line"; done`)
		cmd.Env = env
		c := converse(t, cmd)
		for _, line := range []string{"before", "after"} {
			if got := c.ask(line); got != line {
				t.Errorf("%s: %q", kind, got)
			}
			proctest.Must(0, c.cmd.Process.Signal(syscall.SIGHUP))(t)
		}
		proctest.Must(0, c.in.Close())(t)
		proctest.Must(0, c.cmd.Wait())(t)
	}
}

func TestWorkspaceHasNoSecretsOfLockstep(t *testing.T) {
	t.Parallel()
	_, env := newWorkspaces(t, "1")
	env = append(env, "LOCKSTEP_API_TOKEN=s3cret-of-the-api", "LOCKSTEP_REDIS=redis://:s3cret@localhost", "LOCKSTEP_PROXY=http://u:s3cret@localhost", "LOCKSTEP_CREDENTIAL_FORGE_PASSWORD=s3cret", "LOCKSTEP_HOOK_FORGE_SECRET=s3cret", "KEPT=kept")
	for _, kind := range bothKinds {
		if got := inWorkspace(t, env, `env | grep -e s3cret -e KEPT; tr '\0' '\n' </proc/$$/environ | grep s3cret || :`, "--kind", kind); got != "KEPT=kept" {
			t.Errorf("%s: the command gets %s", kind, got)
		}
	}
}

// Git sets such variables for hooks.
func TestWorkspaceIsTheRepositoryOfItsCommand(t *testing.T) {
	t.Parallel()
	_, env := newWorkspaces(t, "1")
	elsewhere := t.TempDir()
	env = append(env, "GIT_DIR="+elsewhere, "GIT_WORK_TREE="+elsewhere, "GIT_INDEX_FILE="+filepath.Join(elsewhere, "index"), "GIT_OBJECT_DIRECTORY="+elsewhere)
	for _, kind := range bothKinds {
		if got := inWorkspace(t, env, "echo 2 >a; git commit -qam edit; git status -sb", "--kind", kind); got != "## main...origin/main [ahead 1]" {
			t.Errorf("%s: %s", kind, got)
		}
	}
	if left := proctest.Must(os.ReadDir(elsewhere))(t); len(left) > 0 {
		t.Errorf("written to another repository: %v", left)
	}
}

func TestOneOfSeveralCreatesFillsTheFolder(t *testing.T) {
	t.Parallel()
	_, env := newWorkspaces(t, "1")
	dir := filepath.Join(t.TempDir(), "made")
	var made atomic.Int32
	var work sync.WaitGroup
	for range 6 {
		work.Go(func() {
			if out, err := workspaceCommand(t, env, "create", "acme/widgets", dir).CombinedOutput(); err == nil {
				made.Add(1)
			} else if !strings.Contains(string(out), "made is ") {
				t.Errorf("%s", out)
			}
		})
	}
	work.Wait()
	git := exec.Command("git", "-C", dir, "status", "-sb")
	git.Env = env
	if got := output(t, git); made.Load() != 1 || got != "## main...origin/main" {
		t.Errorf("%d were made; git reports %s", made.Load(), got)
	}
}

func TestKilledWorkspaceIsRemovedByTheNext(t *testing.T) {
	t.Parallel()
	for _, kind := range bothKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			_, env := newWorkspaces(t, "1")
			c := converse(t, workspaceCommand(t, env, "exec", "acme/widgets", "--kind", kind, "--", "sh", "-c", `mkdir -m 0555 locked; echo ready; while read -r _; do :; done`))
			if got := c.hear(); got != "ready" {
				t.Fatal(got)
			}
			inWorkspace(t, env, "true")
			if left := proctest.Must(os.ReadDir(scratchOf(env)))(t); len(left) != 1 {
				t.Errorf("while it runs: %v", left)
			}
			proctest.Must(0, c.cmd.Process.Kill())(t)
			_, _ = c.out.ReadString('\n') // ends with the command
			proctest.Eventually(t, func() bool {
				inWorkspace(t, env, "true")
				return len(proctest.Must(os.ReadDir(scratchOf(env)))(t)) == 0
			}, "the files of a killed workspace are left over")
		})
	}
}

// A created workspace needs the volume no more.
func TestCreatedWorkspaceStands(t *testing.T) {
	t.Parallel()
	p, env := newWorkspaces(t, "1")
	dir := filepath.Join(t.TempDir(), "made")
	output(t, workspaceCommand(t, env, "create", "acme/widgets", dir))
	for n := range 3 {
		p.push(fmt.Sprint("new ", n))
		p.sync()
	}
	proctest.Must(0, os.RemoveAll(p.volume.Root()))(t)
	git := gitIn(t, env, dir)
	if got := git("status", "-sb"); got != "## main...origin/main" {
		t.Error(got)
	}
	proctest.Must(0, os.WriteFile(filepath.Join(dir, "a"), []byte("edited"), 0o644))(t)
	git("commit", "-qam", "edit")
	git("push", "-q", "origin", "HEAD:topic")
	git("fetch", "-q")
	git("fsck", "--connectivity-only", "--no-dangling")
	if got := proctest.Must(p.git.Git(t.Context(), "acme/widgets", "", "show", "topic:a"))(t); got != "edited" {
		t.Errorf("pushed %q", got)
	}
}

func TestWorkspaceInWorkspace(t *testing.T) {
	t.Parallel()
	_, env := newWorkspaces(t, "1")
	requireOverlay(t, env)
	self := proctest.Must(exec.LookPath("lockstep"))(t)
	got := inWorkspace(t, env, fmt.Sprintf(`echo outer >a; '%s' workspace exec acme/widgets --kind overlay -- sh -c 'cat a; echo inner >a'; cat a`, self), "--kind", "overlay")
	if got != "1outer" {
		t.Errorf("got %q", got)
	}
}

func TestWorkspaceInOddFolders(t *testing.T) {
	t.Parallel()
	_, env := newWorkspaces(t, "1")
	for _, name := range []string{"a,b:c", `back\slash`, "new\nline", "spa ce", "non\xffutf"} {
		dir := filepath.Join(t.TempDir(), name)
		proctest.Must(0, os.Mkdir(dir, 0o755))(t)
		if got := inWorkspace(t, env, "echo 2 >a; git status --porcelain", "--scratch", dir); got != "M a" {
			t.Errorf("%q: %s", name, got)
		}
		made := filepath.Join(dir, "made")
		output(t, workspaceCommand(t, env, "create", "acme/widgets", made))
		if got := proctest.Must(os.ReadFile(filepath.Join(made, "a")))(t); string(got) != "1" {
			t.Errorf("%q: created with %q", name, got)
		}
	}
}

func TestWorkspaceOfOddTree(t *testing.T) {
	t.Parallel()
	p, env := newWorkspaces(t, "1")
	odd := map[string]string{"non\xffutf": "1", "dir/deep/file": "1", "new\nline": "1", ".gitattributes": "*.txt text eol=crlf\n", "crlf.txt": "a\r\nb\r\n"}
	proctest.Must(p.git.Commit(t.Context(), "acme/widgets", gitserver.Main, gitserver.Edit{Write: odd}))(t)
	p.sync()
	for _, kind := range bothKinds {
		if got := inWorkspace(t, env, "git ls-files | wc -l; git status --porcelain -- ':!crlf.txt'; rm -r dir; mkdir dir; echo 2 >dir/file; git add -A dir; git status --porcelain dir", "--kind", kind); got != "6\nD  dir/deep/file\nA  dir/file" {
			t.Errorf("%s: %s", kind, got)
		}
	}
}
