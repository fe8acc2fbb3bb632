// Package lfs measures the fetch of many objects from a Git LFS server.
package lfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
	"lockstep/internal/gitserver"
	"lockstep/internal/stats"
)

// The contestants.
const (
	SideLockstep = "lockstep"
	SideGit      = "git lfs pull"
)

// Targets.
const (
	maxRatio  = 1.0
	maxMemory = 100 << 20 // bytes
)

const repo = "bench/lfs"

// bench holds the flags.
type bench struct {
	objects, rounds int
	bytes           int
	durability      string
}

// NewCommand returns the command bench lfs.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.Command(std, &cobra.Command{
		Use:   "lfs",
		Short: "Measure the fetch of many objects from Git LFS",
		Long: "Serve a repository with many objects in Git LFS, and fetch them into a tree that has their pointers: with\n" +
			"a sync, which also publishes the tree, and with git lfs pull. Each fetch starts with an empty store. Then\n" +
			"one pointer is changed, and only its object is fetched. Needs git and git-lfs.",
		Example: "  go run ./bench lfs\n  go run ./bench lfs --objects 300 --rounds 3",
	}, b.check, b.run)
	cmd.Flags().IntVar(&b.objects, "objects", 2000, "number of objects")
	cmd.Flags().IntVar(&b.bytes, "bytes", 1_000_000, "`bytes` in an object")
	cmd.Flags().IntVar(&b.rounds, "rounds", 3, "number of fetches by each contestant")
	cmd.Flags().StringVar(&b.durability, "durability", "power", "`power or process`: what of the sync survives; git lfs syncs nothing to disk")
	return cmd
}

func (b *bench) check(func(string) bool) error {
	if b.objects < 1 || b.rounds < 1 || b.bytes < 1 {
		return errors.New("--objects, --bytes and --rounds: want at least 1 of each")
	}
	return nil
}

// Figures are those of one contestant.
type Figures struct {
	Side  string          `json:"side"`
	Took  []time.Duration `json:"took_ns"`
	P50   time.Duration   `json:"p50_ns"`
	ToGit float64         `json:"to_git"`
}

// Report is the outcome.
type Report struct {
	Machine    rig.Machine   `json:"machine"`
	Objects    int           `json:"objects"`
	Bytes      int           `json:"bytes"` // of an object
	Durability string        `json:"durability"`
	Sides      []Figures     `json:"sides"`
	Memory     int64         `json:"memory_bytes"` // peak of the process that syncs
	Push       time.Duration `json:"push_ns"`      // a sync of a push that changes one pointer, median
	Downloads  int           `json:"downloads"`    // in it
}

func (b *bench) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	machine, err := rig.GitMachine(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := gitserver.Git(ctx, env.Dir, "", "lfs", "version"); err != nil {
		return nil, fmt.Errorf("git-lfs is needed: %w", err)
	}
	git, err := env.StartGit()
	if err != nil {
		return nil, err
	}
	head, err := b.fill(ctx, git)
	if err != nil {
		return nil, err
	}
	report := Report{Machine: machine, Objects: b.objects, Bytes: b.bytes, Durability: b.durability}
	names := []string{SideLockstep, SideGit}
	for _, name := range names {
		report.Sides = append(report.Sides, Figures{Side: name})
	}
	var pushes []time.Duration
	err = env.Alternate(b.rounds, names, func(round, i int) error {
		if err := git.SetRef(ctx, repo, "refs/heads/"+gitserver.Main, head); err != nil {
			return err
		}
		dir := filepath.Join(env.Dir, fmt.Sprint("round-", round, "-", i))
		defer os.RemoveAll(dir)
		if names[i] == SideGit {
			took, err := pull(ctx, git, dir)
			report.Sides[i].Took = append(report.Sides[i].Took, took)
			return err
		}
		done, err := b.sync(ctx, git, dir, round)
		report.Sides[i].Took = append(report.Sides[i].Took, done.Took)
		report.Memory, report.Downloads = max(report.Memory, done.Memory), max(report.Downloads, done.downloads)
		pushes = append(pushes, done.Push)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range report.Sides {
		side := &report.Sides[i]
		side.P50, side.ToGit = stats.Median(side.Took), stats.MedianRatio(side.Took, report.Sides[1].Took)
	}
	report.Push = stats.Median(pushes)
	return report, nil
}

// fill creates the repository and its objects, and returns its commit.
func (b *bench) fill(ctx context.Context, git *gitserver.Server) (string, error) {
	random := rand.NewChaCha8([32]byte{})
	content := make([]byte, b.bytes)
	files := map[string]string{".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"}
	if err := git.CreateEmpty(ctx, repo); err != nil {
		return "", err
	}
	for i := range b.objects {
		if _, err := random.Read(content); err != nil {
			return "", err
		}
		files[fmt.Sprintf("dir-%d/object-%d.bin", i%20, i)] = git.LFS(repo).Put(string(content))
	}
	return git.Commit(ctx, repo, gitserver.Main, gitserver.Edit{Write: files})
}

// pull clones the repository without objects, and measures git lfs pull, with the filters that git lfs install sets.
func pull(ctx context.Context, git *gitserver.Server, dir string) (time.Duration, error) {
	clone := append(filters(" --skip"), "clone", "--quiet", "--depth", "1", git.URL(repo), dir)
	if _, err := gitserver.Git(ctx, "/", "", clone...); err != nil {
		return 0, err
	}
	began := time.Now()
	_, err := gitserver.Git(ctx, dir, "", append(filters(""), "lfs", "pull")...)
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	return took, checkTree(dir)
}

func filters(skip string) []string {
	return []string{
		"-c", "filter.lfs.clean=git-lfs clean -- %f", "-c", "filter.lfs.smudge=git-lfs smudge" + skip + " -- %f",
		"-c", "filter.lfs.process=git-lfs filter-process" + skip, "-c", "filter.lfs.required=true",
	}
}

// checkTree returns an error if a file of the tree is a pointer.
func checkTree(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "dir-*", "*.bin"))
	if err != nil || len(paths) == 0 {
		return fmt.Errorf("no objects in %s: %w", dir, err)
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if content, err := os.ReadFile(path); info.Size() < 1000 && (err != nil || strings.HasPrefix(string(content), "version ")) {
			return fmt.Errorf("%s is a pointer: %w", path, err)
		}
	}
	return nil
}

// Verdict returns an error unless the targets are met.
func (r Report) Verdict() error {
	if ratio := r.Sides[0].ToGit; ratio > maxRatio || r.Memory > maxMemory || r.Downloads != 1 {
		return fmt.Errorf("%.2f × git lfs pull, %d MB, and %d downloads for one changed pointer; want at most %.1f, %d and 1",
			ratio, r.Memory>>20, r.Downloads, maxRatio, maxMemory>>20)
	}
	return nil
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s\n%d objects of %d bytes, durability %s; medians of %d\n\n", r.Machine, r.Objects, r.Bytes, r.Durability, len(r.Sides[0].Took))
	table := rig.NewTable(w)
	fmt.Fprintln(table, "\tms\tto git\t")
	for _, s := range r.Sides {
		fmt.Fprintf(table, "%s\t%s\t%.2f\t\n", s.Side, rig.Millis(s.P50), s.ToGit)
	}
	fmt.Fprintf(table, "one changed pointer\t%s\t\t\n", rig.Millis(r.Push))
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nPeak memory of the sync: %d MB; objects fetched for one changed pointer: %d\n", r.Memory>>20, r.Downloads)
	return err
}
