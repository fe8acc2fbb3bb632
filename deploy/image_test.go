package deploy

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/gitserver"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// image builds the root directory of the container image with the steps of the Dockerfile, and returns it with the image's
// environment.
func image(t *testing.T) (root string, environ []string) {
	t.Helper()
	root = t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s", "-o", filepath.Join(root, "lockstep"), "../cmd/lockstep")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const authorities = "etc/ssl/certs/ca-certificates.crt"
	for _, dir := range []string{"repos", "spool", "tmp", filepath.Dir(authorities)} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if content, err := os.ReadFile("/" + authorities); err == nil {
		if err := os.WriteFile(filepath.Join(root, authorities), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(string(read(t, "../Dockerfile"))) {
		if variables, ok := strings.CutPrefix(line, "ENV "); ok {
			environ = append(environ, strings.Fields(variables)...)
		}
	}
	if len(environ) < 3 {
		t.Fatalf("only the variables %q were found in the Dockerfile", environ)
	}
	return root, environ
}

// run returns a command of the image in a container: user 65532 without capabilities, a read-only root, and no mounts
// except the two volumes.
func run(ctx context.Context, root string, environ []string, args ...string) *exec.Cmd {
	const contain = `set -e
root=$1; shift
mount --bind "$root" "$root"
mount -t tmpfs -o uid=65532,gid=65532,mode=755 tmpfs "$root/repos"
mount -t tmpfs -o uid=65532,gid=65532,mode=755 tmpfs "$root/spool"
mount -o remount,bind,ro "$root"
exec setpriv --no-new-privs --bounding-set=-all,+sys_chroot,+setuid,+setgid chroot --userspec=65532:65532 --groups=65532 "$root" /lockstep "$@"`
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--mount", "--propagation=slave", "sh", "-c", contain, "sh", root}, args...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, environ...)
	return cmd
}

func TestImageRunsUnprivilegedWithReadOnlyRoot(t *testing.T) {
	testenv.Long(t)
	root, environ := image(t)
	program, err := elf.Open(filepath.Join(root, "lockstep"))
	if err != nil {
		t.Fatal(err)
	}
	for _, segment := range program.Progs {
		if segment.Type == elf.PT_INTERP || segment.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary is not static: it has the segment %v", segment.Type)
		}
	}
	program.Close()
	if out, err := run(t.Context(), root, environ, "version").CombinedOutput(); err != nil {
		if os.Getuid() != 0 || regexp.MustCompile(`unshare|mount|not found|executable file`).Match(out) || len(out) == 0 {
			t.Skipf("containers require root and unshare(1): %v %s", err, out)
		}
		t.Fatalf("version: %v\n%s", err, out)
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
	out, err := run(t.Context(), root, environ, "sync", git.URL("acme/widgets"), "--json").Output()
	if err != nil || !bytes.Contains(out, []byte(head)) {
		t.Errorf("sync: %v\n%s", err, out)
	}

	out, err = run(t.Context(), root, environ, "sync", git.URL("acme/widgets"), "--root", "/elsewhere").CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("read-only file system")) {
		t.Errorf("the root is writable: %v\n%s", err, out)
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	environ = append(environ, "LOCKSTEP_REDIS="+redistest.Start(t).URL(), "LOCKSTEP_LISTEN="+address, "LOCKSTEP_ADMIN_LISTEN=",
		"LOCKSTEP_HOOK_HUB_FORGE=github", "LOCKSTEP_HOOK_HUB_SECRET=0123456789abcdef")
	serve := run(context.Background(), root, environ, "serve")
	var log bytes.Buffer
	serve.Stdout, serve.Stderr = &log, &log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serve.Wait() }()
	var last string
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		out, err := run(t.Context(), root, environ, "healthcheck").CombinedOutput()
		if last = fmt.Sprint(err, " ", string(out)); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("serve: %v\n%s", err, &log)
		default:
		}
		if time.Now().After(deadline) {
			_ = serve.Process.Kill()
			<-ended
			t.Fatalf("healthcheck: %s\n%s", last, &log)
		}
	}
	_ = serve.Process.Signal(syscall.SIGTERM)
	if err := <-ended; err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, &log)
	}
	if strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("errors were logged:\n%s", &log)
	}
}
