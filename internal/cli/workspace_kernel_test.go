package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// requireRoot skips a test that changes users or mounts.
func requireRoot(t *testing.T, programs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	requirePrograms(t, programs...)
}

// someUser owns files and runs commands in tests. It needs no name.
const someUser = 4711

// asUser lets a lockstep command run as another user, which needs a copy of the program that all may run.
func asUser(t *testing.T, uid int, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "lockstep")
	if err := os.Link(proctest.Must(filepath.EvalSymlinks(cmd.Path))(t), program); err != nil {
		proctest.Must(0, os.WriteFile(program, proctest.Must(os.ReadFile(cmd.Path))(t), 0o755))(t)
	}
	for _, path := range []string{program, dir, cmd.Dir} {
		openUp(t, path)
	}
	cmd.Path = program
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	return cmd
}

// openUp lets all users reach a path in the folder for temporary files.
func openUp(t *testing.T, path string) {
	t.Helper()
	for ; path != os.TempDir() && path != "/"; path = filepath.Dir(path) {
		proctest.Must(0, os.Chmod(path, 0o755))(t)
	}
}

// giveTo gives everything in a folder to a user.
func giveTo(t *testing.T, uid int, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		openUp(t, dir)
		proctest.Must(0, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, uid, uid)
		}))(t)
	}
}

func homeOf(env []string) (dir string) {
	for _, pair := range env {
		if value, ok := strings.CutPrefix(pair, "HOME="); ok {
			dir = value
		}
	}
	return dir
}

func TestWorkspaceOfOrdinaryUser(t *testing.T) {
	t.Parallel()
	requireRoot(t, "id")
	p, env := newWorkspaces(t, "1")
	giveTo(t, someUser, p.volume.Root(), scratchOf(env), homeOf(env))
	run := func(uid int, script string) (stdout, stderr string) {
		t.Helper()
		cmd := asUser(t, uid, workspaceCommand(t, env, "exec", "acme/widgets", "--", "sh", "-ec", script))
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s%s", err, &out, &errs)
		}
		return strings.TrimSpace(out.String()), errs.String()
	}
	const script = `id -u; grep CapEff /proc/self/status | tr -d '\t'; echo 2 >a; rm -f b; git commit -qam edit; git push -q origin HEAD:refs/heads/topic; git status -sb; echo 3 >"$LOCKSTEP_TREE/a" || echo refused`
	out, errs := run(someUser, script)
	if want := fmt.Sprintf("%d\nCapEff:0000000000000000\n## main...origin/main [ahead 1]\nrefused", someUser); out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	if strings.Contains(errs, "copy of all files") {
		t.Skipf("no overlay for ordinary users here: %s", errs)
	}
	if got := proctest.Must(p.git.Git(t.Context(), "acme/widgets", "", "show", "topic:a"))(t); got != "2" {
		t.Errorf("pushed %q", got)
	}
	// Read-only for all its processes, even if the user owns the volume.
	if !strings.Contains(errs, "Read-only file system") {
		t.Errorf("the tree is protected by permissions only: %s", errs)
	}

	// Files of another user cannot be changed in an overlay.
	proctest.Must(0, os.Chmod(scratchOf(env), 0o777))(t)
	proctest.Must(0, os.Chmod(homeOf(env), 0o777))(t)
	out, errs = run(someUser+1, `echo 2 >a; git status --porcelain`)
	if out != "M a" || !strings.Contains(errs, "an overlay is impossible: write to the overlay: ") {
		t.Errorf("as another user: %q, %s", out, errs)
	}
	for _, uid := range []int{someUser, someUser + 1} {
		dir := filepath.Join(homeOf(env), fmt.Sprint("made-by-", uid))
		output(t, asUser(t, uid, workspaceCommand(t, env, "create", "acme/widgets", dir)))
		if got := proctest.Must(os.ReadFile(filepath.Join(dir, "a")))(t); string(got) != "1" {
			t.Errorf("user %d created %q", uid, got)
		}
	}
}

// What the kernel forbids is named, and the files are copied instead.
func TestWorkspaceWhereNamespacesAreForbidden(t *testing.T) {
	t.Parallel()
	requireRoot(t, "unshare", "setpriv")
	_, env := newWorkspaces(t, "1")
	self := proctest.Must(exec.LookPath("lockstep"))(t)
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", "--propagation=slave", "sh", "-ec",
		`echo 0 >/proc/sys/user/max_user_namespaces
		exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin "$0" workspace exec acme/widgets "$@" -- sh -c 'echo 2 >a; git status --porcelain'`, self)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	text := string(out)
	if strings.Contains(text, "unshare failed") {
		t.Skip(text)
	}
	if err != nil || !strings.Contains(text, " M a\n") || !strings.Contains(text, "an overlay is impossible: create a user namespace: ") {
		t.Errorf("%v, %s", err, text)
	}
	cmd = exec.Command(cmd.Path, append(cmd.Args[1:], "--kind", "overlay")...)
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err == nil || strings.Contains(string(out), " M a\n") || !strings.Contains(string(out), "create a user namespace: ") {
		t.Errorf("--kind overlay: %v, %s", err, out)
	}
}

func TestWorkspaceOfReadOnlyVolume(t *testing.T) {
	t.Parallel()
	requireRoot(t, "unshare", "mount")
	p, env := newWorkspaces(t, "1")
	self := proctest.Must(exec.LookPath("lockstep"))(t)
	run := func(args string) (string, error) {
		cmd := exec.Command("unshare", "--mount", "--propagation=slave", "sh", "-ec", `mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; exec "$0" workspace `+args, self, p.volume.Root())
		cmd.Env, cmd.Dir = env, t.TempDir()
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(`exec acme/widgets --kind overlay -- sh -c 'echo 2 >a; git commit -qam edit; git status -sb'`); err != nil || out != "## main...origin/main [ahead 1]\n" {
		t.Errorf("%v, %s", err, out)
	}
	if out, err := run(`create acme/widgets made`); err != nil || !strings.HasPrefix(out, "copied acme/widgets at ") {
		t.Errorf("%v, %s", err, out)
	}
}

// What a command ends with counts, whatever is left behind.
func TestWorkspaceThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	requireRoot(t, "chmod")
	p, env := newWorkspaces(t, "1")
	giveTo(t, someUser, p.volume.Root(), scratchOf(env), homeOf(env))
	for _, kind := range bothKinds {
		out, err := asUser(t, someUser, workspaceCommand(t, env, "exec", "acme/widgets", "--kind", kind, "--", "sh", "-c", `chmod 555 "$TMPDIR"; exit 7`)).CombinedOutput()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != 7 || !strings.Contains(string(out), "lockstep: remove the workspace: ") {
			t.Errorf("%s: %v, %s", kind, err, out)
		}
		proctest.Must(0, os.Chmod(scratchOf(env), 0o755))(t)
	}
}

// Volumes and workspaces on file systems made for the test.
func TestWorkspaceOnOtherFileSystems(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	requireRoot(t, "mount", "truncate")
	for name, mkfs := range map[string][]string{
		"xfs": {"mkfs.xfs", "-q"}, "btrfs": {"mkfs.btrfs", "-q"}, "ext4": {"mkfs.ext4", "-q"}, "tmpfs": nil,
	} {
		t.Run(name, func(t *testing.T) {
			at := filepath.Join(t.TempDir(), "fs")
			proctest.Must(0, os.Mkdir(at, 0o755))(t)
			mount := []string{"mount", "-t", "tmpfs", "tmpfs", at}
			if mkfs != nil {
				requirePrograms(t, mkfs[0])
				image := filepath.Join(t.TempDir(), "image")
				output(t, exec.Command("truncate", "-s", "2G", image))
				output(t, exec.Command(mkfs[0], append(mkfs[1:], image)...))
				mount = []string{"mount", "-o", "loop", image, at}
			}
			if out, err := exec.Command(mount[0], mount[1:]...).CombinedOutput(); err != nil {
				t.Skipf("%v: %s", err, out)
			}
			t.Cleanup(func() { proctest.UnmountBelow(filepath.Dir(at)) })

			p, env := newWorkspaces(t, "1")
			root := filepath.Join(at, "repos")
			output(t, proctest.Command(t, "sync", p.git.URL("acme/widgets"), "--root", root))
			env = append(env, "LOCKSTEP_ROOT="+root, "TMPDIR="+at)
			if got := inWorkspace(t, env, `echo 2 >a; git commit -qam edit; git push -q origin HEAD:refs/heads/topic; git status -sb`, "--kind", "overlay"); got != "## main...origin/main [ahead 1]" {
				t.Errorf("overlay: %s", got)
			}
			dir := filepath.Join(at, "made")
			output(t, workspaceCommand(t, env, "create", "acme/widgets", dir))
			git := gitIn(t, env, dir)
			if got := git("status", "--porcelain"); got != "" {
				t.Error(got)
			}
			proctest.Must(0, os.WriteFile(filepath.Join(dir, "a"), []byte("edited"), 0o644))(t)
			git("commit", "-qam", "edit")
			if got := proctest.Must(os.ReadFile(filepath.Join(root, "acme/widgets/a")))(t); string(got) != "1" {
				t.Errorf("the tree has %q", got)
			}
			cmd := asUser(t, someUser, workspaceCommand(t, env, "exec", "acme/widgets", "--kind", "overlay", "--", "sh", "-c", "echo 2 >a; git status --porcelain"))
			giveTo(t, someUser, at)
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != " M a\n" {
				t.Errorf("as an ordinary user: %v, %s", err, out)
			}
			if left := proctest.Must(filepath.Glob(at + "/lockstep-workspace-*"))(t); len(left) > 0 {
				t.Errorf("left over: %q", left)
			}
		})
	}
}
