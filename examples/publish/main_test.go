package publish_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// built is a directory for programs that the tests build once: the Go programs, including lockstep, and the Node program
// with its packages.
var built string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if built, err = os.MkdirTemp("", "publish"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(built)
		code := m.Run()
		if err := goleak.Find(); code == 0 && err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}())
}

// buildGo builds the Go programs with the flags of make build, so that they share its cache.
var buildGo = sync.OnceValue(func() error {
	cmd := exec.Command("go", "build", "-trimpath", "-o", built+string(filepath.Separator), "lockstep/cmd/lockstep", "./go/fields", "./go/watermill")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
})

// installNode copies the Node program and installs its packages.
var installNode = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(built, "node")
	if err := os.CopyFS(dir, os.DirFS("node")); err != nil {
		return "", err
	}
	cmd := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	return dir, nil
})

// lacking skips a test because a language is not installed. With LOCKSTEP_TEST_LANGUAGES=real, as in CI, it fails the test.
func lacking(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("LOCKSTEP_TEST_LANGUAGES") == "real" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

func redisCLI(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("redis-cli"); err != nil {
		lacking(t, "needs redis-cli (Debian: redis-tools): %v", err)
	}
}

// python returns an interpreter with redis-py.
func python(t *testing.T) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(python, "-c", "import redis").Run() == nil {
			return python
		}
	}
	lacking(t, "needs Python with redis-py (Debian: python3-redis)")
	return ""
}

// node returns the path of the Node program, next to its packages.
func node(t *testing.T) (program string) {
	t.Helper()
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			lacking(t, "needs %s: %v", tool, err)
		}
	}
	dir, err := installNode()
	if err != nil {
		lacking(t, "needs the registry of npm: %v", err)
	}
	return filepath.Join(dir, "publish.mjs")
}
