package gitserver

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// isolatedEnv returns an environment in which git only uses the repository's configuration.
func isolatedEnv() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"),
		// object format of new repositories: sha1 or sha256
		"GIT_DEFAULT_HASH=" + cmp.Or(os.Getenv("GIT_DEFAULT_HASH"), "sha1"),
		"HOME=/nonexistent",
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_TEMPLATE_DIR=", // no sample hooks, which are 14 files for each repository
		"GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=" + author, "GIT_AUTHOR_EMAIL=" + email,
		"GIT_COMMITTER_NAME=" + author, "GIT_COMMITTER_EMAIL=" + email,
	}
}

const (
	author = "Ada Example"
	email  = "ada@example.org"
	epoch  = 1_700_000_000 // Unix time of the first commit
)

// Dir returns the directory of a bare repository.
func (s *Server) Dir(repo string) string {
	return filepath.Join(s.dir, filepath.FromSlash(repo)+".git")
}

// Git runs git in a bare repository with stdin as input, and returns its output without the final newline.
func (s *Server) Git(ctx context.Context, repo, stdin string, args ...string) (string, error) {
	return Git(ctx, s.Dir(repo), stdin, args...)
}

// Git runs git in dir with the same isolated environment, to inspect the output of a program under test.
func Git(ctx context.Context, dir, stdin string, args ...string) (string, error) {
	stdout, _, err := run(ctx, dir, stdin, args)
	return strings.TrimSuffix(stdout, "\n"), err
}

// GitCPU runs git like [Git], and returns the CPU time of its processes in user and kernel mode.
func GitCPU(ctx context.Context, dir string, args ...string) (time.Duration, error) {
	_, state, err := run(ctx, dir, "", args)
	if err != nil {
		return 0, err
	}
	return state.UserTime() + state.SystemTime(), nil
}

func run(ctx context.Context, dir, stdin string, args []string) (string, *os.ProcessState, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = append(isolatedEnv(), fmt.Sprintf("GIT_AUTHOR_DATE=%d +0000", epoch),
		fmt.Sprintf("GIT_COMMITTER_DATE=%d +0000", epoch))
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Ctrl-C does not interrupt it
	if err := cmd.Run(); err != nil {
		return "", nil, fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), cmd.ProcessState, nil
}
