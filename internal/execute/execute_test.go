package execute

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/testenv"
	"lockstep/tree"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const commit = "0123456789012345678901234567890123456789"

// published returns an open tree of acme/widgets and its folder.
func published(t *testing.T) (*tree.Tree, string) {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, ".lockstep/repos/acme/widgets/trees/1-"+commit[:12])
	must(t, os.MkdirAll(filepath.Join(dir, ".git"), 0o755))
	must(t, os.MkdirAll(filepath.Join(root, "acme"), 0o755))
	for name, text := range map[string]string{"lockstep-commit": commit, "lockstep-ref": "refs/heads/main", "lockstep-pin": ""} {
		must(t, os.WriteFile(filepath.Join(dir, ".git", name), []byte(text), 0o644))
	}
	must(t, os.Symlink("../.lockstep/repos/acme/widgets/trees/1-"+commit[:12], filepath.Join(root, "acme/widgets")))
	opened, err := tree.Open(root, "acme/widgets")
	must(t, err)
	t.Cleanup(func() { _ = opened.Close() })
	return opened, dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func shell(script string) Command {
	return Command{Words: []string{"sh", "-c", script}, Timeout: time.Minute, Environ: os.Environ()}
}

func TestCommandRunsInTheTree(t *testing.T) {
	at, dir := published(t)
	output, err := shell("pwd; cat; echo; echo $LOCKSTEP_NAME $LOCKSTEP_COMMIT $LOCKSTEP_REF; test . -ef \"$LOCKSTEP_TREE\"").
		Run(t.Context(), at, "acme/widgets", []byte("the input"))
	want := fmt.Sprintf("%s\nthe input\nacme/widgets %s refs/heads/main\n", dir, commit)
	if output != want || err != nil {
		t.Errorf("printed %q, want %q, %v", output, want, err)
	}
}

func TestSecretsAreNotInTheEnvironment(t *testing.T) {
	at, _ := published(t)
	c := shell("env")
	c.Environ = []string{"PATH=" + os.Getenv("PATH"), "LOCKSTEP_REDIS=redis://:hunter2@r", "LOCKSTEP_API_TOKEN=hunter2", "LOCKSTEP_PROXY=http://a:hunter2@p",
		"LOCKSTEP_CREDENTIAL_CI_PASSWORD=hunter2", "LOCKSTEP_HOOK_HUB_SECRET=hunter2", "GITSYNC_PASSWORD=hunter2",
		"OTEL_EXPORTER_OTLP_HEADERS=hunter2", "GIT_DIR=/elsewhere", "LOCKSTEP_ROOT=kept"}
	output, err := c.Run(t.Context(), at, "acme/widgets", nil)
	if strings.Contains(output, "hunter2") || strings.Contains(output, "GIT_DIR") || !strings.Contains(output, "LOCKSTEP_ROOT=kept") || err != nil {
		t.Errorf("environment %s, %v", output, err)
	}
}

func TestFailedCommandPrintsItsEnd(t *testing.T) {
	at, _ := published(t)
	output, err := shell("yes é | head -c 1000002; echo the reason >&2; exit 3").Run(t.Context(), at, "acme/widgets", make([]byte, 1<<20))
	if err == nil || !strings.HasPrefix(err.Error(), "exit status 3: ") || !strings.HasSuffix(err.Error(), "the reason") || len(err.Error()) > 500 {
		t.Errorf("error %v", err)
	}
	if len(output) > maxOutput || !strings.HasSuffix(output, "é\nthe reason\n") {
		t.Errorf("%d bytes of output", len(output))
	}
}

// A child process has the pin: if it is killed too, nothing has it after the tree is closed.
func TestTimeoutKillsTheProcessGroup(t *testing.T) {
	at, dir := published(t)
	c := shell("sleep 1000 & sleep 1000; echo not reached")
	c.Timeout = 300 * time.Millisecond
	output, err := c.Run(t.Context(), at, "acme/widgets", nil)
	if err == nil || err.Error() != "did not end within 300ms, killed" || output != "" {
		t.Errorf("%q, %v", output, err)
	}
	must(t, at.Close())
	awaitUnpinned(t, dir)
}

// In a container, this process is PID 1, to which the children of a killed command fall.
func TestChildrenOfAKilledCommandAreReaped(t *testing.T) {
	must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
	at, _ := published(t)
	file := filepath.Join(t.TempDir(), "pid")
	c := shell("sleep 1000 & echo $! >" + file + "; (sleep 1000 & sleep 1000) & wait")
	c.Timeout = 500 * time.Millisecond
	if _, err := c.Run(t.Context(), at, "acme/widgets", nil); err == nil {
		t.Error("not killed")
	}
	pid, err := os.ReadFile(file)
	must(t, err)
	if text, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat"); err == nil {
		t.Errorf("still there: %s", text)
	}
}

func TestGitReadsTheTree(t *testing.T) {
	at, dir := published(t)
	c := shell("echo $GIT_OPTIONAL_LOCKS $GIT_CONFIG_COUNT $GIT_CONFIG_KEY_2 $GIT_CONFIG_VALUE_2")
	c.Environ = append(c.Environ, "GIT_CONFIG_COUNT=2")
	if output, err := c.Run(t.Context(), at, "acme/widgets", nil); output != "0 3 safe.directory "+dir+"\n" || err != nil {
		t.Errorf("%q, %v", output, err)
	}
}

func awaitUnpinned(t *testing.T, dir string) {
	t.Helper()
	file, err := os.Open(filepath.Join(dir, ".git/lockstep-pin"))
	must(t, err)
	defer file.Close()
	for deadline := time.Now().Add(time.Minute); syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a process still has the pin")
		}
	}
}

func TestCancelledCommandIsKilledWithTheCause(t *testing.T) {
	at, _ := published(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the cause")
	time.AfterFunc(200*time.Millisecond, func() { cancel(cause) })
	if _, err := shell("sleep 1000").Run(ctx, at, "acme/widgets", nil); !errors.Is(err, cause) {
		t.Error(err)
	}
}

func TestBackgroundProcessesAreNotAwaited(t *testing.T) {
	at, _ := published(t)
	began := time.Now()
	output, err := shell("sleep 20 & echo started").Run(t.Context(), at, "acme/widgets", nil)
	if output != "started\n" || err != nil || time.Since(began) > 15*time.Second {
		t.Errorf("%q, %v after %v", output, err, time.Since(began))
	}
}

func TestMissingProgramsAreRefused(t *testing.T) {
	for program, want := range map[string]string{
		"no-such-program":  "executable file not found",
		"./hook":           "want an absolute path",
		"scripts/hook":     "want an absolute path",
		"/no/such/program": "no such file",
		"/etc/passwd":      "permission denied",
	} {
		if _, err := New([]string{program}, time.Second, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", program, err, want)
		}
	}
	if _, err := New([]string{"sh", "-c", "true"}, time.Second, nil); err != nil {
		t.Error(err)
	}
}
