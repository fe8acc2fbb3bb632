package archive

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/archive"
	"lockstep/internal/cli/term"
	"lockstep/internal/gitserver"
	"lockstep/internal/volume"
	"lockstep/tree"
)

// stage is a published tree and its repository.
type stage struct {
	root, repo, git string
	files           int
}

func (s stage) publish(ctx context.Context, git *gitserver.Server) error {
	v, err := volume.OpenVolume(s.root, volume.Config{Durability: volume.DurabilityProcess})
	if err != nil {
		return err
	}
	defer v.Close()
	name, err := events.ParseRepoPath(s.repo)
	if err != nil {
		return err
	}
	_, err = v.Sync(ctx, volume.SyncRequest{Repo: name, URL: git.URL(s.repo), Fence: 1})
	return err
}

// lockstep measures an archive in a separate process.
func (s stage) lockstep(ctx context.Context) (made Archive, err error) {
	program, err := os.Executable()
	if err != nil {
		return made, err
	}
	cmd := exec.CommandContext(ctx, program, "archive-worker", s.root, s.repo)
	cmd.Stderr = os.Stderr
	report, err := cmd.Output()
	if err != nil {
		return made, err
	}
	return made, json.Unmarshal(report, &made)
}

// NewWorkerCommand returns the hidden command of a process that makes an archive.
func NewWorkerCommand(std term.Streams) *cobra.Command {
	return &cobra.Command{
		Use: "archive-worker root repo", Short: "One process of bench archive", Hidden: true,
		Args: term.WrongUse(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			made, err := work(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			return json.NewEncoder(std.Stdout).Encode(made)
		},
	}
}

// work makes an archive as a reader does: it computes the entity tag first, and the digest while writing.
func work(ctx context.Context, root, repo string) (made Archive, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return made, err
	}
	defer null.Close()
	used, err := rig.CPUTime(os.Getpid())
	if err != nil {
		return made, err
	}
	began := time.Now()
	opened, err := tree.Open(root, repo)
	if err != nil {
		return made, err
	}
	defer opened.Close()
	contents := archive.New(opened, archive.Options{})
	if _, err := contents.Summary(ctx); err != nil {
		return made, err
	}
	sum := sha256.New()
	if err := contents.Write(ctx, io.MultiWriter(null, sum, (*counter)(&made.Bytes)), archive.TarZst); err != nil {
		return made, err
	}
	made.Wall, made.Digest = time.Since(began), fmt.Sprintf("%x", sum.Sum(nil))
	after, err := rig.CPUTime(os.Getpid())
	if err != nil {
		return made, err
	}
	made.CPU = after - used
	made.Memory, err = rig.Memory(os.Getpid(), "VmHWM")
	return made, err
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// pipe measures git archive | zstd.
func (s stage) pipe(ctx context.Context, level int) (made Archive, err error) {
	script := fmt.Sprintf("git archive %s | zstd -q -%d -c", gitserver.Main, level)
	cmd := s.shell(ctx, script+" >/dev/null")
	var problems strings.Builder
	cmd.Stderr = &problems
	began := time.Now()
	if err := cmd.Run(); err != nil || problems.Len() > 0 {
		return made, fmt.Errorf("%s: %w: %s", script, err, &problems)
	}
	made.Wall, made.CPU = time.Since(began), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
	out, err := s.shell(ctx, script+" | wc -c").Output()
	if err == nil {
		made.Bytes, err = strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	}
	return made, err
}

func (s stage) shell(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Dir = s.git
	return cmd
}
