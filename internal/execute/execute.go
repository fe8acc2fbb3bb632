// Package execute runs an operator's commands in published trees. Which command to run comes from the operator's own
// configuration alone, never from Redis, the API, a watch or a repository.
package execute

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"lockstep/tree"
)

// Command is a command to run in trees. [New] checks one.
type Command struct {
	Words   []string      // program and arguments
	Timeout time.Duration // of a run
	Environ []string      // of this process; [Environ] says which of it a run gets
}

// New returns a command. It fails if the program does not exist or is named relative to the tree, since a repository
// could then replace it.
func New(words []string, timeout time.Duration, environ []string) (Command, error) {
	program := words[0]
	if strings.Contains(program, "/") && !filepath.IsAbs(program) {
		return Command{}, fmt.Errorf("%s: want an absolute path, or the name of a program in PATH", program)
	}
	if _, err := exec.LookPath(program); err != nil {
		return Command{}, err
	}
	return Command{words, timeout, environ}, nil
}

const (
	maxOutput = 4 << 10         // bytes of output that are kept, the last ones
	maxReason = 400             // bytes of output in an error
	closeWait = 2 * time.Second // for processes that keep the output open after the command's end
)

// Run runs the command in a tree that is published under a name, with input as its standard input. It returns the end
// of the output, standard error included. On a timeout, or when ctx is done, the command's process group is killed. If
// this process dies, the kernel kills the program, but not the processes that it has started: they may go on beside a
// repeated run. All processes that inherit the tree's pin keep the tree.
func (c Command) Run(ctx context.Context, t *tree.Tree, name string, input []byte) (output string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("did not end within %v, killed", c.Timeout))
	defer cancel()
	var out tail
	cmd := exec.CommandContext(ctx, c.Words[0], c.Words[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = t.Dir(), bytes.NewReader(input), &out, &out
	cmd.Env = append(Environ(c.Environ, t, t.Dir()), GitVariables(c.Environ, t)...)
	cmd.Env = append(cmd.Env, "LOCKSTEP_NAME="+name)
	cmd.ExtraFiles = []*os.File{t.Pin()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = closeWait
	// The kernel sends Pdeathsig when the thread ends that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if cmd.Process != nil {
		reap(cmd.Process.Pid, ctx.Err() != nil)
	}
	text := strings.ToValidUTF8(string(out), "")
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil: // a child process goes on in the background
		return text, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	if last := strings.TrimSpace(text); last != "" {
		return text, fmt.Errorf("%w: %s", err, strings.ToValidUTF8(last[max(0, len(last)-maxReason):], ""))
	}
	return text, err
}

const (
	reapFor   = 500 * time.Millisecond
	reapPause = 10 * time.Millisecond
)

// reap removes the ended processes of a process group that have become children of this one, as those of PID 1 do in a
// container. There may be some until all of a killed group have ended.
func reap(group int, killed bool) {
	for end := time.Now().Add(reapFor); time.Now().Before(end); {
		pid, err := syscall.Wait4(-group, nil, syscall.WNOHANG, nil)
		switch {
		case pid > 0 || errors.Is(err, syscall.EINTR):
		case err != nil || !killed: // there are none, or they go on in the background
			return
		default:
			time.Sleep(reapPause) // there is no signal of their end but SIGCHLD, which is of all children
		}
	}
}

// tail keeps the end of what is written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	kept := append(*t, p...)
	*t = append(kept[:0], kept[max(0, len(kept)-maxOutput):]...)
	return len(p), nil
}

// Environ returns the environment of a command that runs in a folder, for a tree: that of a process without its
// secrets, and without variables that make git use another repository.
func Environ(environ []string, t *tree.Tree, dir string) []string {
	return append(slices.DeleteFunc(slices.Clone(environ), isDropped), TreeVariables(t, dir)...)
}

// TreeVariables returns the variables that name a tree to a command that runs in a folder. They belong after others: the
// last of several values counts.
func TreeVariables(t *tree.Tree, dir string) []string {
	return []string{
		"LOCKSTEP_TREE=" + t.Dir(), "LOCKSTEP_COMMIT=" + t.Commit(), "LOCKSTEP_REF=" + t.Ref().String(), "PWD=" + dir,
	}
}

// GitVariables returns the variables with which git reads a tree: without writing to it, and trusting it, although it
// belongs to the workers' user. environ may add to git's configuration already.
func GitVariables(environ []string, t *tree.Tree) []string {
	n := 0
	for _, variable := range environ {
		if count, ok := strings.CutPrefix(variable, "GIT_CONFIG_COUNT="); ok {
			n, _ = strconv.Atoi(count)
		}
	}
	return []string{
		"GIT_OPTIONAL_LOCKS=0", fmt.Sprintf("GIT_CONFIG_COUNT=%d", n+1),
		fmt.Sprintf("GIT_CONFIG_KEY_%d=safe.directory", n), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", n, t.Dir()),
	}
}

// dropped are the variables that a command does not get.
var dropped = []string{
	"LOCKSTEP_API_TOKEN", "LOCKSTEP_REDIS", "LOCKSTEP_PROXY", // have secrets, as those with the prefixes below
	"GITSYNC_PASSWORD", "GITSYNC_GITHUB_APP_PRIVATE_KEY", "GITSYNC_WEBHOOK_URL", "OTEL_EXPORTER_OTLP_HEADERS",
	"OTEL_EXPORTER_OTLP_TRACES_HEADERS",
	// With these, as set for hooks, git would work on another repository.
	"GIT_DIR", "GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY",
	"GIT_ALTERNATE_OBJECT_DIRECTORIES",
	"GIT_QUARANTINE_PATH", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE", "GIT_REPLACE_REF_BASE",
	"GIT_NO_REPLACE_OBJECTS",
}

func isDropped(pair string) bool {
	name, _, _ := strings.Cut(pair, "=")
	return slices.Contains(dropped, name) || strings.HasPrefix(name, "LOCKSTEP_CREDENTIAL_") ||
		strings.HasPrefix(name, "LOCKSTEP_HOOK_")
}
