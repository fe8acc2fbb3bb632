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
	"lockstep/internal/redistest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

func TestSyncNeedsNoRedisAndNoConfiguration(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	git, root := proctest.StartGit(t), t.TempDir()
	first := proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"README": "hello\n", "src/main.go": "package main\n"}))(t)

	stdout, stderr, code := proctest.RunLockstep(t, nil, "sync", git.URL("acme/widgets"), "--root", root, "--json")
	if code != term.ExitDone {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	report := proctest.DecodeJSON(t, stdout)
	if report["repo"] != "acme/widgets" || report["ref"] != "refs/heads/main" || report["after"] != first || report["path"] != "acme/widgets" {
		t.Errorf("report %v", report)
	}
	if report["before"] != "" {
		t.Errorf("before is %v after the first sync, want it empty", report["before"])
	}
	for _, field := range []string{"fence", "took_ms", "files", "tree"} {
		if _, ok := report[field]; !ok {
			t.Errorf("no %s in the report: %s", field, stdout)
		}
	}
	assertCheckout(t, filepath.Join(root, "acme/widgets"), first)

	second := proctest.Must(git.Commit(ctx, "acme/widgets", gitserver.Main, gitserver.Edit{
		Write: map[string]string{"README": "hello again\n"}, Delete: []string{"src/main.go"}}))(t)
	stdout, stderr, code = proctest.RunLockstep(t, nil, "sync", git.URL("acme/widgets"), "--root", root, "--json")
	if code != term.ExitDone {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	report = proctest.DecodeJSON(t, stdout)
	if report["before"] != first || report["after"] != second {
		t.Errorf("from %v to %v, want %s to %s", report["before"], report["after"], first, second)
	}
	if got := fmt.Sprint(report["files"]); got != "[map[path:README status:modified] map[path:src/main.go status:deleted]]" {
		t.Errorf("files %s", got)
	}
	assertCheckout(t, filepath.Join(root, "acme/widgets"), second)

	stdout, _, code = proctest.RunLockstep(t, nil, "sync", git.URL("acme/widgets"), "--root", root)
	if code != term.ExitDone || !strings.Contains(stdout, "is up to date") {
		t.Errorf("exit code %d, output %q; want it up to date", code, stdout)
	}
}

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

func TestSyncThroughRunningService(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	git, server, root := proctest.StartGit(t), redistest.Start(t), t.TempDir()
	head := proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	proctest.Start(t, "serve", "--root", root, "--redis", server.URL())
	stdout, stderr, code := proctest.RunLockstep(t, []string{"LOCKSTEP_REDIS=" + server.URL()}, "sync", git.URL("acme/widgets"), "--app", "docs")
	if code != term.ExitDone || !strings.Contains(stdout, head[:12]) {
		t.Fatalf("exit code %d, output %q %q", code, stdout, stderr)
	}
	proctest.Eventually(t, func() bool { // the lease is released after the result
		stdout, stderr, code = proctest.RunLockstep(t, nil, "repos", "show", "acme/widgets", "--redis", server.URL())
		return code == term.ExitDone && strings.Contains(stdout, head[:12]) && strings.Contains(stdout, "free")
	}, "the status shows the repository, which is free")
	stdout, _, code = proctest.RunLockstep(t, nil, "status", "--redis", server.URL(), "--json")
	if report := proctest.DecodeJSON(t, stdout); code != term.ExitDone || report["results"] != 1.0 || report["pending"] != 0.0 || report["workers"] != 1.0 {
		t.Errorf("status: exit code %d, output %q", code, stdout)
	}
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
	if err := git.CreateEmpty(ctx, "acme/empty"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
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
		"an invalid variable":   {git.URL("acme/widgets"), nil, []string{"LOCKSTEP_SLOTS=many"}, term.ExitUsage, "LOCKSTEP_SLOTS \"many\": want a whole number"},
		"zero timeout":          {git.URL("acme/widgets"), []string{"--timeout", "0s"}, nil, term.ExitUsage, "timeout 0s"},
		"a path that escapes":   {git.URL("acme/widgets"), []string{"--repo", "acme/../../etc"}, nil, term.ExitUsage, "not a repository path"},
		"a secret in the URL":   {"http://u:hunter2@127.0.0.1/acme/widgets.git", nil, nil, term.ExitUsage, "name a credential instead"},
		"an unsupported scheme": {"file:///acme/widgets.git", nil, nil, term.ExitUsage, "use http or https"},
		"an invalid ref":        {git.URL("acme/widgets"), []string{"--ref", "a..b"}, nil, term.ExitUsage, "not a Git ref"},
		"an unreachable remote": {"http://127.0.0.1:1/acme/widgets.git", nil, nil, term.ExitFailed, "127.0.0.1:1"},
		"a missing repository":  {git.URL("acme/missing"), nil, nil, term.ExitFailed, "no such repository"},
		"a missing branch":      {git.URL("acme/widgets"), []string{"--ref", "nope"}, nil, term.ExitFailed, "refs/heads/nope"},
		"an empty repository":   {git.URL("acme/empty"), nil, nil, term.ExitFailed, "empty"},
		"a remote that fails":   {git.URL("acme/flaky"), nil, nil, term.ExitFailed, "500"},
		"a missing credential":  {git.URL("acme/private"), nil, nil, term.ExitFailed, "credential"},
		"a wrong credential":    {git.URL("acme/private"), []string{"--credential", "ci"}, wrong, term.ExitFailed, "credential"},
		"an unknown credential": {git.URL("acme/private"), []string{"--credential", "who"}, nil, term.ExitFailed, "unknown credential"},
		"a root that is a file": {git.URL("acme/widgets"), []string{"--root", file}, nil, term.ExitFailed, file},
		"an unreachable Redis":  {git.URL("acme/widgets"), []string{"--redis", "redis://127.0.0.1:1"}, nil, term.ExitUnavailable, "does not answer; start it"},
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
			for _, secret := range []string{"hunter2", "battery-staple"} {
				if strings.Contains(stderr, secret) {
					t.Errorf("the error reveals a secret: %s", stderr)
				}
			}
		})
	}
}

func TestPublishTimesOutWithOrWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proctest.WithLongerTimeouts(t, 100*time.Millisecond, func(d time.Duration) error {
		_, stderr, code := proctest.RunLockstep(t, nil, "publish", "http://127.0.0.1:1/acme/widgets.git", "--redis", server.URL(), "--wait", "--timeout", d.String())
		if code != term.ExitTimedOut || !strings.Contains(stderr, "was published, but has no result within "+d.String()+"; is a worker running?") {
			return fmt.Errorf("exit code %d, error %q", code, stderr)
		}
		return nil
	})
	silent := proctest.Must(net.Listen("tcp", "127.0.0.1:0"))(t) // accepts connections but never replies
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
	ctx := context.Background()
	held := make(chan struct{}, 10)
	git := proctest.StartGit(t, gitserver.WithBefore(func(ctx context.Context, repo, _ string) {
		if repo == "acme/gadgets" {
			held <- struct{}{}
		}
		<-ctx.Done()
	}))
	for _, repo := range []string{"acme/widgets", "acme/gadgets"} {
		proctest.Must(git.Create(ctx, repo, map[string]string{"a": "1"}))(t)
	}
	settings := filepath.Join(t.TempDir(), "lockstep.yaml")
	proctest.Must(0, os.WriteFile(settings, []byte("grace: 5m\n"), 0o600))(t) // applies to services only

	proctest.WithLongerTimeouts(t, time.Second, func(d time.Duration) error {
		_, stderr, code := proctest.RunLockstep(t, nil, "sync", git.URL("acme/widgets"), "--timeout", d.String(), "--config", settings)
		if code != term.ExitTimedOut || !strings.Contains(stderr, "no result within "+d.String()+"; the remote or the volume is slow") {
			return fmt.Errorf("exit code %d, want 4: %s", code, stderr)
		}
		return nil
	})
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
	if err := syscall.Bind(full, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(full, 0); err != nil {
		t.Fatal(err)
	}
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

func TestErrorNamesRedisThatRefuses(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t)
	if err := server.Client().ConfigSet(context.Background(), "requirepass", "hunter2").Err(); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"status"}, {"serve"}, {"publish", "http://127.0.0.1:1/a/b"}, {"sync", "http://127.0.0.1:1/a/b"}} {
		_, stderr, code := proctest.RunLockstep(t, nil, append(args, "--redis", server.URL())...)
		if code != term.ExitFailed || !strings.Contains(stderr, "redis at "+server.URL()+" refused the command; check its password") {
			t.Errorf("%s: exit code %d, want 1: %s", args[0], code, stderr)
		}
	}
}

func TestUsageErrorsAreOneLineAndExitCode2(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	for _, args := range [][]string{
		{"frobnicate"}, {"sync"}, {"sync", "--nonsense"}, {"serve", "--roles", "receiver"}, {"serve", "--roles", "receiver", "--listen", "127.0.0.1:0"}, {"serve", "more"}, {"status"},
		{"version", "more"}, {"publish", "http://127.0.0.1:1/a/b"}, {"status", "..", "--redis", "127.0.0.1:1"},
		{"serve", "--redis", "u:hunter2@127.0.0.1:1"},
	} {
		_, stderr, code := proctest.RunLockstep(t, nil, args...)
		if code != term.ExitUsage || strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, "hunter2") {
			t.Errorf("%q: exit code %d, want 2 and one line: %s", args, code, stderr)
		}
	}
}

func TestCredentialIsUsedButNotStored(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	git, root, credentials := proctest.StartGit(t), t.TempDir(), t.TempDir()
	head := proctest.Must(git.Create(ctx, "acme/private", map[string]string{"a": "1"}))(t)
	git.RequireAuth("acme/private", "bot", "correct-horse")
	dir := filepath.Join(credentials, "ci")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"username": "bot\n", "password": "correct-horse\n", "urls": git.URL("acme/private")} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
