package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// gitIn runs git in a directory and returns its trimmed output.
func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s in %s: %v\n%s", strings.Join(args, " "), dir, err, out)
	}
	return strings.TrimSpace(string(out))
}

func assertCheckout(t *testing.T, dir, commit string) {
	t.Helper()
	info, err := os.Lstat(dir)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Fatalf("%s is not a symlink: %v, %v", dir, info, err)
	}
	if got := gitIn(t, dir, "log", "-1", "--format=%H"); got != commit {
		t.Errorf("%s is at %s, want %s", dir, got, commit)
	}
	if dirty := gitIn(t, dir, "status", "--porcelain"); dirty != "" {
		t.Errorf("%s is not clean:\n%s", dir, dirty)
	}
	gitIn(t, dir, "fsck", "--no-dangling")
}

func TestSyncErrorsAreOneActionableLine(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	ctx := context.Background()
	git := proctest.StartGit(t)
	proctest.Must(git.Create(ctx, "acme/private", map[string]string{"a": "1"}))(t)
	git.RequireAuth("acme/private", "bot", "correct-horse")
	proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	proctest.Must(git.Create(ctx, "acme/flaky", map[string]string{"a": "1"}))(t)
	git.Answer("acme/flaky", 500)
	proctest.Must(0, git.CreateEmpty(ctx, "acme/empty"))(t)
	wrong := []string{
		"LOCKSTEP_CREDENTIAL_CI_USERNAME=bot", "LOCKSTEP_CREDENTIAL_CI_PASSWORD=battery-staple",
		"LOCKSTEP_CREDENTIAL_CI_URLS=" + git.URL("acme/private"),
	}
	for name, tc := range map[string]struct {
		url  string
		args []string
		env  []string
		code int
		want string
	}{
		"two invalid settings":  {git.URL("acme/widgets"), []string{"--slots", "0", "--log-level", "loud"}, nil, term.ExitUsage, "in lockstep.yaml); log-level"},
		"zero timeout":          {git.URL("acme/widgets"), []string{"--timeout", "0s"}, nil, term.ExitUsage, "timeout 0s"},
		"a path that escapes":   {git.URL("acme/widgets"), []string{"--repo", "acme/../../etc"}, nil, term.ExitUsage, "not a repository path"},
		"an invalid ref":        {git.URL("acme/widgets"), []string{"--ref", "a..b"}, nil, term.ExitUsage, "not a Git ref"},
		"an unreachable remote": {"http://127.0.0.1:1/acme/widgets.git", nil, nil, term.ExitFailed, "127.0.0.1:1"},
		"a missing repository":  {git.URL("acme/missing"), nil, nil, term.ExitFailed, "no such repository"},
		"a missing branch":      {git.URL("acme/widgets"), []string{"--ref", "nope"}, nil, term.ExitFailed, "refs/heads/nope"},
		"an empty repository":   {git.URL("acme/empty"), nil, nil, term.ExitFailed, "empty"},
		"a remote that fails":   {git.URL("acme/flaky"), nil, nil, term.ExitFailed, "500"},
		"a missing credential":  {git.URL("acme/private"), nil, nil, term.ExitFailed, "credential"},
		"a wrong credential":    {git.URL("acme/private"), []string{"--credential", "ci"}, wrong, term.ExitFailed, "credential"},
		"an unknown credential": {git.URL("acme/private"), []string{"--credential", "who"}, nil, term.ExitFailed, "unknown credential"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"sync", tc.url, "--timeout", "30s"}, tc.args...)
			_, stderr, code := proctest.RunLockstep(t, append(tc.env, "LOCKSTEP_ROOT="+t.TempDir()), args...)
			if code != tc.code || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d, want %d; error %q, want one with %q", code, tc.code, stderr, tc.want)
			}
			if lines := strings.Count(strings.TrimSpace(stderr), "\n"); lines != 0 {
				t.Errorf("the error has %d lines, want one:\n%s", lines+1, stderr)
			}
			if strings.Contains(stderr, "battery-staple") {
				t.Errorf("the error reveals a secret: %s", stderr)
			}
		})
	}
}

// TestPublishTimesOutWithoutRedis has a Redis that accepts connections and never replies.
func TestPublishTimesOutWithoutRedis(t *testing.T) {
	t.Parallel()
	silent := proctest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	proctest.WithLongerTimeouts(t, 100*time.Millisecond, func(d time.Duration) error {
		_, stderr, code := proctest.RunLockstep(t, nil, "publish", "http://127.0.0.1:1/acme/widgets.git", "--redis", silent.Addr().String(), "--wait", "--timeout", d.String())
		if code != term.ExitTimedOut || !strings.Contains(stderr, "redis did not confirm it within "+d.String()+", but may have stored it") {
			return fmt.Errorf("exit code %d, error %q", code, stderr)
		}
		return nil
	})
}

func TestCancelledSyncEndsAtOnce(t *testing.T) {
	t.Parallel()
	held := make(chan struct{}, 10)
	git := proctest.StartGit(t, gitserver.WithBefore(func(ctx context.Context, _, _ string) {
		held <- struct{}{}
		<-ctx.Done()
	}))
	proctest.Must(git.Create(t.Context(), "acme/gadgets", map[string]string{"a": "1"}))(t)
	settings := filepath.Join(t.TempDir(), "lockstep.yaml")
	proctest.Must(0, os.WriteFile(settings, []byte("grace: 5m\n"), 0o600))(t) // applies to services only
	p := proctest.Start(t, "sync", git.URL("acme/gadgets"), "--config", settings)
	<-held
	_ = p.Cmd.Process.Signal(os.Interrupt)
	if code := p.AwaitExit(time.Minute); code != term.ExitFailed || strings.Count(p.Log.String(), "\n") != 1 {
		t.Errorf("exit code %d, want 1 and one line: %s", code, p.Log)
	}
}

// TestUnreachableRedisIsUnavailable connects to a full listen queue: the dial timeout must not look like a timeout of the
// sync.
func TestUnreachableRedisIsUnavailable(t *testing.T) {
	t.Parallel()
	full := proctest.Must(syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0))(t)
	t.Cleanup(func() { _ = syscall.Close(full) })
	proctest.Must(0, syscall.Bind(full, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))(t)
	proctest.Must(0, syscall.Listen(full, 0))(t)
	name, ok := proctest.Must(syscall.Getsockname(full))(t).(*syscall.SockaddrInet4)
	if !ok {
		t.Fatal("the socket has no address")
	}
	address := fmt.Sprintf("127.0.0.1:%d", name.Port)
	for { // fill the listen queue
		conn, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			break
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	_, stderr, code := proctest.RunLockstep(t, nil, "sync", "http://127.0.0.1:1/acme/widgets.git", "--redis", address)
	if code != term.ExitUnavailable || !strings.Contains(stderr, "does not answer") {
		t.Errorf("exit code %d, want 3: %s", code, stderr)
	}
}

func TestCredentialIsUsedButNotStored(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	git, root, credentials := proctest.StartGit(t), t.TempDir(), t.TempDir()
	head := proctest.Must(git.Create(ctx, "acme/private", map[string]string{"a": "1"}))(t)
	git.RequireAuth("acme/private", "bot", "correct-horse")
	dir := filepath.Join(credentials, "ci")
	proctest.Must(0, os.Mkdir(dir, 0o700))(t)
	for file, text := range map[string]string{"username": "bot\n", "password": "correct-horse\n", "urls": git.URL("acme/private")} {
		proctest.Must(0, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))(t)
	}
	stdout, stderr, code := proctest.RunLockstep(t, nil, "sync", git.URL("acme/private"), "--root", root, "--credentials", credentials, "--credential", "ci", "--log-level", "debug")
	if code != term.ExitDone || !strings.Contains(stdout, head[:12]) {
		t.Fatalf("exit code %d, output %q %q", code, stdout, stderr)
	}
	if strings.Contains(stdout+stderr, "correct-horse") {
		t.Error("the secret is in the output")
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "correct-horse") {
			t.Errorf("the secret rests in %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
