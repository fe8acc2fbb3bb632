package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/bench"
	"lockstep/internal/gitserver"
)

// availabilityRun is one contestant's turn.
type availabilityRun struct {
	*availabilityBench
	git  *gitserver.Server
	repo string
	dir  string // of its own
}

// syncers bring pushes to readers.
type syncers interface {
	// published is the path that readers open. It is there already.
	published() string

	// run goes on until ctx ends, and returns an error if it cannot.
	run(ctx context.Context) error

	// pushed tells of a push.
	pushed(ctx context.Context, commit string) error

	// report fills in what was done.
	report(ctx context.Context, result *availabilityResult) error
	stop()
}

const (
	pushPause   = 100 * time.Millisecond // between a push and the next
	readPause   = 10 * time.Millisecond  // between a read and the reader's next: who syncs wants the processor too
	forcedEvery = 10                     // pushes
	stretches   = 40                     // of a run, in the plot
)

// play pushes, syncs and reads at once, for as long as the run is to last.
func (r *availabilityRun) play(ctx context.Context, start func(*availabilityRun) (syncers, error)) (result availabilityResult, err error) {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return result, err
	}
	first, err := r.git.Create(ctx, r.repo, r.version(0))
	if err != nil {
		return result, err
	}
	s, err := start(r)
	if err != nil {
		return result, err
	}
	defer s.stop()
	timed, cancel := context.WithTimeout(ctx, r.duration)
	defer cancel()
	g, during := errgroup.WithContext(timed)
	reads, began := make([][]bench.TreeRead, r.readers), time.Now()
	g.Go(func() error { return s.run(during) })
	g.Go(func() error { return r.push(during, s, first, &result) })
	for i := range reads {
		g.Go(func() (err error) {
			reads[i], err = r.read(during, s.published(), began)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return result, err
	}
	if ctx.Err() != nil {
		return result, context.Cause(ctx)
	}
	all := slices.Concat(reads...)
	result.Availability = bench.JudgeReads(all)
	result.OverTime = bench.ReadsOverTime(all, r.duration, stretches)
	return result, s.report(ctx, &result)
}

// push pushes one version after the other; every tenth time by force, onto the first commit.
func (r *availabilityRun) push(during context.Context, s syncers, first string, result *availabilityResult) error {
	ctx := context.WithoutCancel(during) // a push that has begun is done
	for n := 1; during.Err() == nil; n++ {
		edit := gitserver.Edit{Write: r.version(n)}
		if n%forcedEvery == 0 {
			edit.Parent = first
			result.Forced++
		}
		commit, err := r.git.Commit(ctx, r.repo, gitserver.Main, edit)
		if err != nil {
			return err
		}
		result.Pushes++
		if err := s.pushed(ctx, commit); err != nil {
			return err
		}
		pause(during, pushPause)
	}
	return nil
}

// path is where the repository has its ith file.
func (r *availabilityRun) path(i int) string { return fmt.Sprintf("dir-%d/file-%d.txt", i%10, i) }

const (
	versionHead = "version %d\n"
	versionTail = "end of version %d\n"
)

// version is what all files are at version n.
func (r *availabilityRun) version(n int) map[string]string {
	content := fmt.Sprintf(versionHead, n) + strings.Repeat("a line that stays as it is\n", 40) + fmt.Sprintf(versionTail, n)
	files := make(map[string]string, r.files)
	for i := range r.files {
		files[r.path(i)] = content
	}
	return files
}

// readVersion returns the version that a file names, and whether it is all there.
func readVersion(content []byte) (version int, whole bool) {
	if _, err := fmt.Sscanf(string(content), versionHead, &version); err != nil {
		return 0, false
	}
	return version, bytes.HasSuffix(content, fmt.Appendf(nil, versionTail, version))
}

// read reads the whole tree, over and over.
func (r *availabilityRun) read(during context.Context, published string, began time.Time) (reads []bench.TreeRead, err error) {
	for during.Err() == nil {
		at := time.Since(began)
		read, err := r.readOnce(published)
		if err != nil {
			return nil, err
		}
		read.At = at
		reads = append(reads, read)
		pause(during, readPause)
	}
	return reads, nil
}

// readOnce opens the published name, and then reads every file below what it has opened.
func (r *availabilityRun) readOnce(published string) (read bench.TreeRead, err error) {
	tree, err := os.OpenRoot(published)
	if errors.Is(err, fs.ErrNotExist) {
		read.Missing = r.files
		return read, nil
	}
	if err != nil {
		return read, err
	}
	defer tree.Close()
	for i := range r.files {
		content, err := tree.ReadFile(r.path(i))
		if errors.Is(err, fs.ErrNotExist) {
			read.Missing++
			continue
		}
		if err != nil {
			return read, err
		}
		version, whole := readVersion(content)
		switch {
		case !whole:
			read.Torn++
		case !slices.Contains(read.Versions, version):
			read.Versions = append(read.Versions, version)
		}
	}
	return read, nil
}
