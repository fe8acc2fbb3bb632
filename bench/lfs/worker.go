package lfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/cli/term"
	"lockstep/internal/git/lfs"
	"lockstep/internal/gitserver"
	"lockstep/internal/volume"
)

// synced is what a process reports of its syncs.
type synced struct {
	Took   time.Duration `json:"took_ns"`
	Memory int64         `json:"memory_bytes"`
	Push   time.Duration `json:"push_ns"`

	downloads int
}

// NewWorkerCommand returns the hidden command of a process that syncs.
func NewWorkerCommand(std term.Streams) *cobra.Command {
	return &cobra.Command{
		Use: "lfs-worker root url durability", Short: "One process of bench lfs", Hidden: true,
		Args: term.WrongUse(cobra.ExactArgs(3)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return work(cmd.Context(), args[0], args[1], volume.Durability(args[2]), cmd.InOrStdin(), std.Stdout)
		},
	}
}

// work syncs the pointers, then the objects, and after a line of input the next push.
func work(ctx context.Context, root, url string, durability volume.Durability, in io.Reader, out io.Writer) error {
	v, err := volume.OpenVolume(root, volume.Config{Durability: durability})
	if err != nil {
		return err
	}
	defer v.Close()
	name, err := events.ParseRepoPath(repo)
	if err != nil {
		return err
	}
	fence := uint64(0)
	sync := func(selection lfs.Selection) (time.Duration, error) {
		fence++
		began := time.Now()
		_, err := v.Sync(ctx, volume.SyncRequest{Repo: name, URL: url, Fence: fence, LFS: selection})
		return time.Since(began), err
	}
	if _, err := sync(nil); err != nil {
		return err
	}
	var done synced
	if done.Took, err = sync(lfs.Selection{{}}); err != nil {
		return err
	}
	if done.Memory, err = rig.Memory(os.Getpid(), "VmHWM"); err != nil {
		return err
	}
	fmt.Fprintln(out, "synced")
	if _, err := io.ReadFull(in, make([]byte, 1)); err != nil {
		return err
	}
	if done.Push, err = sync(lfs.Selection{{}}); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(done)
}

// sync runs a process that syncs into dir, and changes one pointer in between.
func (b *bench) sync(ctx context.Context, git *gitserver.Server, dir string, round int) (done synced, err error) {
	program, err := os.Executable()
	if err != nil {
		return done, err
	}
	cmd := exec.CommandContext(ctx, program, "lfs-worker", dir, git.URL(repo), b.durability)
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return done, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return done, err
	}
	if err := cmd.Start(); err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, cmd.Wait()) }()
	defer input.Close()
	if _, err := io.ReadFull(output, make([]byte, len("synced\n"))); err != nil {
		return done, err
	}
	git.LFS(repo).Requests()
	changed := git.LFS(repo).Put(fmt.Sprint("changed in round ", round))
	if _, err := git.Commit(ctx, repo, gitserver.Main, gitserver.Edit{Write: map[string]string{"dir-0/object-0.bin": changed}}); err != nil {
		return done, err
	}
	if _, err := io.WriteString(input, "\n"); err != nil {
		return done, err
	}
	if err := json.NewDecoder(output).Decode(&done); err != nil {
		return done, err
	}
	_, downloads := git.LFS(repo).Requests()
	done.downloads = len(downloads)
	return done, checkTree(filepath.Join(dir, repo))
}
