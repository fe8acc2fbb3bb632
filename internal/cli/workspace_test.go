package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
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
		for _, s := range []syscall.Signal{ // Go's runtime has other default actions for most of them
			syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGABRT, syscall.SIGSEGV, syscall.SIGUSR1, syscall.SIGPIPE, syscall.SIGKILL,
		} {
			if signal.Ignored(s) {
				continue
			}
			out, err := workspaceCommand(t, env, "exec", "acme/widgets", "--kind", kind, "--", "sh", "-c", fmt.Sprintf("kill -%d $$", s)).CombinedOutput()
			exit, ok := errors.AsType[*exec.ExitError](err)
			if !ok || exit.Sys().(syscall.WaitStatus).Signal() != s || len(out) > 0 {
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

// Whoever can write the volume can write records.
func TestForgedRecordDeletesNothing(t *testing.T) {
	t.Parallel()
	p, env := newWorkspaces(t, "1")
	precious := t.TempDir()
	proctest.Must(0, os.WriteFile(filepath.Join(precious, "file"), nil, 0o644))(t)
	records := filepath.Join(p.volume.Root(), ".lockstep/repos/acme/widgets/workspaces")
	proctest.Must(0, os.MkdirAll(records, 0o755))(t)
	record := filepath.Join(records, "forged.json")
	proctest.Must(0, os.WriteFile(record, fmt.Appendf(nil, `{"id": "forged", "name": "acme/widgets", "tree": "1-0", "kind": "copy", "host": %q, "dir": "/nowhere/made", "layers": %q}`,
		proctest.Must(os.Hostname())(t), precious), 0o644))(t)
	if got := output(t, workspaceCommand(t, env, "ls")); !strings.Contains(got, "damaged") {
		t.Error(got)
	}
	output(t, workspaceCommand(t, env, "rm", "--stale"))
	output(t, workspaceCommand(t, env, "rm", record, "--force"))
	if _, err := os.Lstat(filepath.Join(precious, "file")); err != nil {
		t.Error(err)
	}
}

func TestOneOfSeveralCreatesFillsTheFolder(t *testing.T) {
	t.Parallel()
	_, env := newWorkspaces(t, "1")
	for _, kind := range bothKinds {
		dir := filepath.Join(t.TempDir(), "made")
		t.Cleanup(func() { proctest.UnmountBelow(filepath.Dir(dir)) })
		var made atomic.Int32
		var work sync.WaitGroup
		for range 6 {
			work.Go(func() {
				if out, err := workspaceCommand(t, env, "create", "acme/widgets", dir, "--kind", kind).CombinedOutput(); err == nil {
					made.Add(1)
				} else if !strings.Contains(string(out), "made is ") {
					t.Errorf("%s: %s", kind, out)
				}
			})
		}
		work.Wait()
		git := exec.Command("git", "-C", dir, "status", "-sb")
		git.Env = env
		if got := output(t, git); made.Load() != 1 || got != "## main...origin/main" {
			t.Errorf("%s: %d were made; git reports %s", kind, made.Load(), got)
		}
		output(t, workspaceCommand(t, env, "rm", dir))
	}
}

func TestKilledWorkspaceIsFoundAndRemoved(t *testing.T) {
	t.Parallel()
	for _, kind := range bothKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			_, env := newWorkspaces(t, "1")
			list := func() string { return output(t, workspaceCommand(t, env, "ls")) }
			kill := func() {
				c := converse(t, workspaceCommand(t, env, "exec", "acme/widgets", "--kind", kind, "--", "sh", "-c", `mkdir -m 0555 locked; echo ready; while read -r _; do :; done`))
				if got := c.hear(); got != "ready" {
					t.Fatal(got)
				}
				if got := list(); !strings.Contains(got, "running") {
					t.Errorf("while it runs: %s", got)
				}
				proctest.Must(0, c.cmd.Process.Kill())(t)
				_, _ = c.out.ReadString('\n') // ends with the command
				proctest.Eventually(t, func() bool { return strings.Contains(list(), "killed") }, "the workspace is not listed as killed")
			}
			kill()
			if got := output(t, workspaceCommand(t, env, "rm", "--stale")); !strings.Contains(got, "removed") {
				t.Error(got)
			}
			kill()
			inWorkspace(t, env, "true")
			if left := proctest.Must(os.ReadDir(scratchOf(env)))(t); len(left) > 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
}

// TestKilledCreateIsFoundAndRemoved makes the record of a complete copy that of an incomplete one.
func TestKilledCreateIsFoundAndRemoved(t *testing.T) {
	t.Parallel()
	p, env := newWorkspaces(t, "1")
	dir := filepath.Join(t.TempDir(), "made")
	output(t, workspaceCommand(t, env, "create", "acme/widgets", dir, "--kind", "copy"))
	for w, err := range p.volume.Workspaces() {
		w.Kind = ""
		proctest.Must(volume.RecordWorkspace(proctest.Must(w, err)(t)))(t)
	}
	creating := proctest.Must(os.Open(dir))(t)
	proctest.Must(0, unix.Flock(int(creating.Fd()), unix.LOCK_EX))(t)
	if got := output(t, workspaceCommand(t, env, "rm", "--stale")); got != "" {
		t.Errorf("removed what is being created: %s", got)
	}
	if got := output(t, workspaceCommand(t, env, "ls")); !strings.Contains(got, "incomplete") {
		t.Errorf("while it is created: %s", got)
	}
	proctest.Must(0, creating.Close())(t)
	if got := output(t, workspaceCommand(t, env, "ls")); !strings.Contains(got, "killed") {
		t.Errorf("after that: %s", got)
	}
	if got := output(t, workspaceCommand(t, env, "rm", "--stale")); !strings.Contains(got, "removed") {
		t.Error(got)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the files are there: %v", err)
	}
}

func TestCreatedWorkspaceKeepsItsTree(t *testing.T) {
	t.Parallel()
	for _, kind := range bothKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p, env := newWorkspaces(t, "1")
			dir := filepath.Join(t.TempDir(), "made")
			t.Cleanup(func() { proctest.UnmountBelow(filepath.Dir(dir)) })
			output(t, workspaceCommand(t, env, "create", "acme/widgets", dir, "--kind", kind))
			for n := range 3 {
				p.push(fmt.Sprint("new ", n))
				p.sync()
			}
			p.sync()
			git := func(args ...string) string {
				t.Helper()
				cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
				cmd.Env = env
				return output(t, cmd)
			}
			if got := git("status", "--porcelain"); got != "" {
				t.Error(got)
			}
			proctest.Must(0, os.WriteFile(filepath.Join(dir, "a"), []byte("edited"), 0o644))(t)
			git("commit", "-qam", "edit")
			git("push", "-q", "origin", "HEAD:topic")
			git("fsck")
			if got := proctest.Must(p.git.Git(t.Context(), "acme/widgets", "", "show", "topic:a"))(t); got != "edited" {
				t.Errorf("pushed %q", got)
			}
			var rows strings.Builder
			testenv.Must(describe(p.volume, "acme/widgets"))(t).Table(&rows)
			if !strings.Contains(rows.String(), "workspaces\t1, which keep their trees") {
				t.Errorf("repos show prints %q", &rows)
			}
			if u := p.volume.Usage(proctest.Must(events.ParseRepoPath("acme/widgets"))(t)); u.Workspaces != 1 {
				t.Errorf("usage: %+v", u)
			}
			output(t, workspaceCommand(t, env, "rm", dir))
			p.push("last")
			p.sync()
			p.sync()
			if trees := proctest.Must(filepath.Glob(filepath.Join(p.volume.Root(), ".lockstep/repos/acme/widgets/trees/[0-9]*")))(t); len(trees) > 2 {
				t.Errorf("trees are left: %q", trees)
			}
		})
	}
}

// After a reboot, an overlay is not mounted. The test is not parallel: where mounts are private, a workspace exec of another test keeps a
// copy of this mount, and so of the workspace.
func TestCreatedOverlayIsMountedAgain(t *testing.T) {
	_, env := newWorkspaces(t, "1")
	dir := filepath.Join(t.TempDir(), "made")
	t.Cleanup(func() { proctest.UnmountBelow(filepath.Dir(dir)) })
	if out, err := workspaceCommand(t, env, "create", "acme/widgets", dir, "--kind", "overlay").CombinedOutput(); err != nil {
		t.Skipf("%s", out)
	}
	proctest.Must(0, os.WriteFile(filepath.Join(dir, "a"), []byte("edited"), 0o644))(t)
	proctest.UnmountBelow(filepath.Dir(dir))
	if got := output(t, workspaceCommand(t, env, "ls")); !strings.Contains(got, "unmounted") {
		t.Error(got)
	}
	proctest.Must(0, os.Remove(dir))(t) // as on a temporary file system
	output(t, workspaceCommand(t, env, "create", "acme/widgets", dir))
	if got := proctest.Must(os.ReadFile(filepath.Join(dir, "a")))(t); string(got) != "edited" {
		t.Errorf("after mounting again: %q", got)
	}
	in := proctest.Must(os.Open(dir))(t)
	if out, err := workspaceCommand(t, env, "rm", dir).CombinedOutput(); err == nil || !strings.Contains(string(out), "is in use: end the processes") {
		t.Errorf("removed while in use: %v, %s", err, out)
	}
	in.Close()
	proctest.UnmountBelow(filepath.Dir(dir))
	output(t, workspaceCommand(t, env, "rm", dir))
	if left := proctest.Must(os.ReadDir(filepath.Dir(dir)))(t); len(left) > 0 {
		t.Errorf("left over: %v", left)
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
		if name == "non\xffutf" {
			if out, err := workspaceCommand(t, env, "create", "acme/widgets", filepath.Join(dir, "made")).CombinedOutput(); err == nil || !strings.Contains(string(out), "is not valid UTF-8") {
				t.Errorf("%q: %v, %s", name, err, out)
			}
			continue
		}
		made := filepath.Join(dir, "made")
		t.Cleanup(func() { proctest.UnmountBelow(filepath.Dir(dir)) })
		output(t, workspaceCommand(t, env, "create", "acme/widgets", made))
		output(t, workspaceCommand(t, env, "rm", made))
		if left := proctest.Must(os.ReadDir(dir))(t); len(left) > 0 {
			t.Errorf("%q: left over: %v", name, left)
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
