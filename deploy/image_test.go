package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// contain runs the image in a container: user 65532 without capabilities, a read-only root, and no mounts except the two volumes.
const contain = `set -e
root=$1; shift
mount --bind "$root" "$root"
mount -t tmpfs -o uid=65532,gid=65532,mode=755 tmpfs "$root/repos"
mount -t tmpfs -o uid=65532,gid=65532,mode=755 tmpfs "$root/spool"
mount -o remount,bind,ro "$root"
exec setpriv --no-new-privs --bounding-set=-all,+sys_chroot,+setuid,+setgid chroot --userspec=65532:65532 --groups=65532 "$root" /lockstep "$@"`

func TestImageRunsUnprivilegedWithReadOnlyRoot(t *testing.T) {
	testenv.Long(t)
	if err := exec.CommandContext(t.Context(), "unshare", "--mount", "true").Run(); err != nil {
		t.Skipf("skipped: containers require root and unshare(1): %v", err)
	}
	root := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s", "-o", filepath.Join(root, "lockstep"), "../cmd/lockstep")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, dir := range []string{"repos", "spool", "tmp"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--propagation=slave", "sh", "-c", contain, "sh", root}, args...)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LOCKSTEP_ROOT=/repos"}
		return cmd.CombinedOutput()
	}
	git, err := gitserver.Start(filepath.Join(t.TempDir(), "remote"))
	if err != nil {
		t.Fatal(err)
	}
	defer git.Close()
	head, err := git.Create(t.Context(), "acme/widgets", map[string]string{"README": "hello\n"})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := run("sync", git.URL("acme/widgets"), "--json"); err != nil || !bytes.Contains(out, []byte(head)) {
		t.Errorf("sync: %v\n%s", err, out)
	}
	if out, err := run("sync", git.URL("acme/widgets"), "--root", "/elsewhere"); err == nil || !bytes.Contains(out, []byte("read-only file system")) {
		t.Errorf("the root is writable: %v\n%s", err, out)
	}
}
