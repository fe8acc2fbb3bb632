// Package gitclients runs Git clients that are not Git, for tests: go-git, Dulwich, pygit2 and JGit. Each is
// a process that stays, since some take seconds to start.
package gitclients

import (
	"bufio"
	"bytes"
	"embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Names are the names of the clients.
var Names = []string{"go-git", "dulwich", "pygit2", "jgit"}

//go:embed programs
var programs embed.FS

// Client is a running client and its bare clone. Its program reads URLs, and for each prints "ok" and the
// commit of main, or "error" and a text.
type Client struct {
	Version string // names of the client and of the library that it uses, and their versions

	stdin  io.Writer
	stdout *bufio.Reader
	stderr bytes.Buffer
}

// Start starts a client, whose clone will be dir, until the test ends. It skips the test if the client is not
// installed.
func Start(t testing.TB, name, dir string) *Client {
	t.Helper()
	cmd := command(t, name, dir)
	c := &Client{}
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	cmd.Stderr = &c.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait() // t.Context has ended, which kills it
	})
	c.stdin, c.stdout = stdin, bufio.NewReader(stdout)
	if c.Version, err = c.line(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	return c
}

func command(t testing.TB, name, dir string) *exec.Cmd {
	t.Helper()
	switch name {
	case "go-git":
		return exec.CommandContext(t.Context(), buildGoGit(t), dir)
	case "jgit":
		_, err := os.Stat("/usr/share/java/org.eclipse.jgit.jar")
		if _, noCompiler := exec.LookPath("javac"); err != nil || noCompiler != nil {
			t.Skip("not installed (Debian: jgit-cli, default-jdk-headless)")
		}
		file := filepath.Join(t.TempDir(), "Fetch.java")
		if err := os.WriteFile(file, program(t, "Fetch.java"), 0o600); err != nil {
			t.Fatal(err)
		}
		return exec.CommandContext(t.Context(), "java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp",
			"/usr/share/java/*", file, dir)
	}
	if err := exec.CommandContext(t.Context(), "/usr/bin/python3", "-c", "import "+name).Run(); err != nil {
		t.Skipf("not installed (Debian: python3-%s)", name)
	}
	return exec.CommandContext(t.Context(), "/usr/bin/python3", "-c", string(program(t, name+".py")), dir)
}

func program(t testing.TB, name string) []byte {
	t.Helper()
	text, err := programs.ReadFile("programs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// buildGoGit builds the client of go-git. Its modules are downloaded when they are first needed.
func buildGoGit(t testing.TB) string {
	t.Helper()
	module, err := exec.CommandContext(t.Context(), "go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "gogit")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".")
	build.Dir = filepath.Join(filepath.Dir(string(module)), "internal", "gitclients", "gogit")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// Fetch clones a URL the first time, later fetches all branches. It returns the commit of main, "" if there
// is no such branch.
func (c *Client) Fetch(url string) (commit string, err error) {
	if _, err := fmt.Fprintln(c.stdin, url); err != nil {
		return "", err
	}
	line, err := c.line()
	if err != nil {
		return "", err
	}
	commit, ok := strings.CutPrefix(line, "ok")
	if !ok {
		return "", fmt.Errorf("%s: %s", c.Version, line)
	}
	return strings.TrimSpace(commit), nil
}

func (c *Client) line() (string, error) {
	line, err := c.stdout.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s ended: %w: %s", c.Version, err, &c.stderr)
	}
	return strings.TrimSuffix(line, "\n"), nil
}
