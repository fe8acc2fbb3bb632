package availability

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

	"lockstep/internal/app"
	"lockstep/internal/gitserver"
)

// Deployment is one contestant's turn.
type Deployment struct {
	*AvailabilityBench
	git  *gitserver.Server
	repo string
	Dir  string // of its own
}

// syncers bring pushes to readers.
type syncers interface {
	// published is the path that readers open. It is there already.
	published() string

	// Run goes on until ctx ends, and returns an error if it cannot.
	Run(ctx context.Context) error

	// pushed tells of a push.
	pushed(ctx context.Context, commit string) error

	// report fills in what was done.
	report(ctx context.Context, result *AvailabilityResult) error
	stop()
}

const (
	pushPause   = 100 * time.Millisecond // between a push and the next
	readPause   = 10 * time.Millisecond  // between a read and the reader's next: who syncs wants the processor too
	ForcedEvery = 10                     // pushes
	stretches   = 40                     // of a run, in the plot
)

// Play pushes, syncs and reads at once, for as long as the run is to last.
func (r *Deployment) Play(ctx context.Context, start func(*Deployment) (syncers, error)) (result AvailabilityResult, err error) {
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		return result, err
	}
	first, err := r.git.Create(ctx, r.repo, r.Version(0))
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
	reads, began := make([][]TreeRead, r.readers), time.Now()
	g.Go(func() error { return s.Run(during) })
	g.Go(func() error { return r.push(during, s, first, &result) })
	for i := range reads {
		g.Go(func() (err error) {
			reads[i], err = r.Read(during, s.published(), began)
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
	result.Availability = JudgeReads(all)
	result.OverTime = ReadsOverTime(all, r.duration, stretches)
	return result, s.report(ctx, &result)
}

// push pushes one version after the other; every tenth time by force, onto the first commit.
func (r *Deployment) push(during context.Context, s syncers, first string, result *AvailabilityResult) error {
	ctx := context.WithoutCancel(during) // a push that has begun is done
	for n := 1; during.Err() == nil; n++ {
		edit := gitserver.Edit{Write: r.Version(n)}
		if n%ForcedEvery == 0 {
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
		app.Sleep(during, pushPause)
	}
	return nil
}

// Path is where the repository has its ith file.
func (r *Deployment) Path(i int) string { return fmt.Sprintf("dir-%d/file-%d.txt", i%10, i) }

const (
	versionHead = "version %d\n"
	versionTail = "end of version %d\n"
)

// Version is what all files are at version n.
func (r *Deployment) Version(n int) map[string]string {
	content := fmt.Sprintf(versionHead, n) + strings.Repeat("a line that stays as it is\n", 40) + fmt.Sprintf(versionTail, n)
	files := make(map[string]string, r.Files)
	for i := range r.Files {
		files[r.Path(i)] = content
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

// Read reads the whole tree, over and over.
func (r *Deployment) Read(during context.Context, published string, began time.Time) (reads []TreeRead, err error) {
	for during.Err() == nil {
		at := time.Since(began)
		read, err := r.ReadOnce(published)
		if err != nil {
			return nil, err
		}
		read.At = at
		reads = append(reads, read)
		app.Sleep(during, readPause)
	}
	return reads, nil
}

// ReadOnce opens the published name, and then reads every file below what it has opened.
func (r *Deployment) ReadOnce(published string) (read TreeRead, err error) {
	tree, err := os.OpenRoot(published)
	if errors.Is(err, fs.ErrNotExist) {
		read.Missing = r.Files
		return read, nil
	}
	if err != nil {
		return read, err
	}
	defer tree.Close()
	for i := range r.Files {
		content, err := tree.ReadFile(r.Path(i))
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
