package workspace

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep/bench/rig"
	"lockstep/tree"
)

// Crowd has the figures of many workspaces at once.
type Crowd struct {
	Workspaces int           `json:"workspaces"`
	Bytes      int64         `json:"bytes"`         // that each command writes
	Ready      time.Duration `json:"ready_ns"`      // from the start of the first until all have written
	Disk       int64         `json:"disk_bytes"`    // of all, while they are there
	Overhead   int64         `json:"overhead"`      // bytes on disk of each besides what its command writes
	Foreign    int           `json:"foreign_files"` // seen in a workspace, but not of the tree or its own
	Altered    bool          `json:"tree_altered"`
	Left       int           `json:"left"` // entries in the scratch folder afterwards
}

// script changes a file of the tree, writes a new one, and reports what it sees once all others have done so too.
const script = `echo "$1" >"$3"; head -c "$2" /dev/urandom >"new-$1"; echo ready; read -r _; echo new-* "$(cat "$3")"`

func (s *stage) crowd(ctx context.Context, n int, bytes int64) (c Crowd, err error) {
	c = Crowd{Workspaces: n, Bytes: bytes}
	published, err := tree.Open(s.root, repo)
	if err != nil {
		return c, err
	}
	defer published.Close()
	before, edited, err := digest(published.Dir())
	if err != nil {
		return c, err
	}
	members := make([]*member, n)
	defer func() {
		for _, m := range members {
			m.kill()
		}
	}()
	began := time.Now()
	g, running := errgroup.WithContext(ctx)
	for i := range members {
		members[i] = s.member(ctx, i, bytes, edited)
		g.Go(func() error { return members[i].begin(running) })
	}
	if err := g.Wait(); err != nil {
		return c, err
	}
	c.Ready, c.Disk = time.Since(began), usage(s.scratch)
	c.Overhead = (c.Disk-usageOf(s.scratch))/int64(n) - bytes
	for i, m := range members {
		saw, err := m.end()
		if err != nil {
			return c, err
		}
		if saw != fmt.Sprintf("new-%d %d", i, i) {
			c.Foreign++
		}
	}
	after, _, err := digest(published.Dir())
	if err != nil {
		return c, err
	}
	c.Altered = before != after
	left, err := os.ReadDir(s.scratch)
	c.Left = len(left)
	return c, err
}

// member is one of the workspaces.
type member struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	errors strings.Builder
}

func (s *stage) member(ctx context.Context, i int, bytes int64, edited string) *member {
	m := &member{cmd: exec.CommandContext(ctx, s.lockstep, s.execArgs("sh", "-c", script, "sh", fmt.Sprint(i), fmt.Sprint(bytes), edited)...)}
	m.cmd.Env, m.cmd.Stderr = s.environ, &m.errors
	return m
}

// begin starts the command, and waits until it has written.
func (m *member) begin(ctx context.Context) error {
	in, err := m.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	m.in, m.out = in, bufio.NewReader(out)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	line, err := m.out.ReadString('\n')
	if err != nil || line != "ready\n" {
		return fmt.Errorf("a workspace does not begin: %q, %w, %w: %s", line, err, m.cmd.Wait(), &m.errors)
	}
	return nil
}

// end lets the command report what it sees and end.
func (m *member) end() (saw string, err error) {
	if _, err := fmt.Fprintln(m.in); err != nil {
		return "", err
	}
	line, err := m.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("a workspace reports nothing: %w, %w: %s", err, m.cmd.Wait(), &m.errors)
	}
	return strings.TrimSpace(line), m.cmd.Wait()
}

func (m *member) kill() {
	if m != nil && m.cmd.Process != nil && m.cmd.ProcessState == nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
	}
}

// digest returns a hash of the names and content of all files in a tree, and the path of one.
func digest(dir string) (sum [sha256.Size]byte, file string, err error) {
	h := sha256.New()
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if !strings.HasPrefix(relative, ".git/") {
			file = relative
		}
		fmt.Fprintf(h, "%s %d\n", relative, len(content))
		_, _ = h.Write(content)
		return err
	})
	return [sha256.Size]byte(h.Sum(nil)), file, err
}

// usage returns the space on disk that a folder uses, as far as it can be read.
func usage(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			bytes += usageOf(path)
		}
		return nil
	})
	return bytes
}

func usageOf(path string) int64 {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

func (c Crowd) table(w io.Writer) error {
	_, err := fmt.Fprintf(w, "\n%d at once, each writing %d bytes: all there after %s ms; %d MiB on disk, %d KiB each besides what it wrote\n"+
		"files of others seen: %d; tree altered: %v; left over: %d\n",
		c.Workspaces, c.Bytes, rig.Millis(c.Ready), c.Disk>>20, c.Overhead>>10, c.Foreign, c.Altered, c.Left)
	return err
}

func (c Crowd) verdict() (missed []error) {
	fault := func(format string, args ...any) { missed = append(missed, fmt.Errorf(format, args...)) }
	if c.Foreign > 0 {
		fault("%d workspaces see what others wrote", c.Foreign)
	}
	if c.Altered {
		fault("the published tree was altered")
	}
	if c.Left > 0 {
		fault("%d entries are left in the scratch folder", c.Left)
	}
	if c.Overhead > maxOverhead {
		fault("a workspace takes %d bytes besides what was written, more than %d", c.Overhead, maxOverhead)
	}
	return missed
}
