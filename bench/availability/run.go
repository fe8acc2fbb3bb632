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

	"lockstep/internal/gitserver"
	"lockstep/internal/redisx"
)

// turn is one contestant's turn.
type turn struct {
	*bench
	git  *gitserver.Server
	repo string
	dir  string // for its files
}

// syncer publishes pushes to readers.
type syncer interface {
	// published returns the path that readers open. It exists already.
	published() string

	// run works until ctx ends, or returns an error.
	run(ctx context.Context) error

	// pushed announces a push.
	pushed(ctx context.Context, commit string) error

	// report fills in the syncer's own figures.
	report(result *Result)
}

const (
	pushPause   = 100 * time.Millisecond // between pushes
	restPause   = time.Second            // after every restEvery pushes, for preparations
	restEvery   = 5
	readPause   = 10 * time.Millisecond // between the reads of a reader, to leave CPU time for syncs
	forcedEvery = 10
)

// run pushes, syncs and reads concurrently for the duration.
func (t *turn) run(ctx context.Context, start func(*turn) (syncer, error)) (result Result, err error) {
	if err := os.MkdirAll(t.dir, 0o755); err != nil {
		return result, err
	}
	first, err := t.git.Create(ctx, t.repo, t.version(0))
	if err != nil {
		return result, err
	}
	s, err := start(t)
	if err != nil {
		return result, err
	}
	timed, cancel := context.WithTimeout(ctx, t.duration)
	defer cancel()
	g, during := errgroup.WithContext(timed)
	reads := make([][]treeRead, t.readers)
	g.Go(func() error { return s.run(during) })
	g.Go(func() error { return t.push(during, s, first, &result) })
	for i := range reads {
		g.Go(func() (err error) {
			reads[i], err = t.read(during, s.published())
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return result, err
	}
	if ctx.Err() != nil {
		return result, context.Cause(ctx)
	}
	result.Figures = countReads(slices.Concat(reads...))
	s.report(&result)
	return result, nil
}

// push pushes one version after the other. Every tenth is a forced push of a child of the first commit.
func (t *turn) push(during context.Context, s syncer, first string, result *Result) error {
	ctx := context.WithoutCancel(during) // finish a push that has begun
	for n := 1; during.Err() == nil; n++ {
		edit := gitserver.Edit{Write: t.version(n)}
		if n%forcedEvery == 0 {
			edit.Parent = first
		}
		commit, err := t.git.Commit(ctx, t.repo, gitserver.Main, edit)
		if err != nil {
			return err
		}
		result.Pushes++
		if err := s.pushed(ctx, commit); err != nil {
			return err
		}
		if n%restEvery == 0 {
			redisx.Pause(during, restPause)
		}
		redisx.Pause(during, pushPause)
	}
	return nil
}

// path returns the path of the ith file.
func (t *turn) path(i int) string { return fmt.Sprintf("dir-%d/file-%d.txt", i%10, i) }

const (
	versionHead = "version %d\n"
	versionTail = "end of version %d\n"
)

// version returns the content of all files at version n.
func (t *turn) version(n int) map[string]string {
	content := fmt.Sprintf(versionHead, n) + strings.Repeat("a line that stays as it is\n", 40) + fmt.Sprintf(versionTail, n)
	files := make(map[string]string, t.files)
	for i := range t.files {
		files[t.path(i)] = content
	}
	return files
}

// readVersion returns the version in a file, and whether the file is complete.
func readVersion(content []byte) (version int, whole bool) {
	if _, err := fmt.Sscanf(string(content), versionHead, &version); err != nil {
		return 0, false
	}
	return version, bytes.HasSuffix(content, fmt.Appendf(nil, versionTail, version))
}

// read reads the whole tree repeatedly.
func (t *turn) read(during context.Context, published string) (reads []treeRead, err error) {
	for during.Err() == nil {
		read, err := t.readOnce(published)
		if err != nil {
			return nil, err
		}
		reads = append(reads, read)
		redisx.Pause(during, readPause)
	}
	return reads, nil
}

// readOnce opens the published name once and reads every file below it.
func (t *turn) readOnce(published string) (read treeRead, err error) {
	tree, err := os.OpenRoot(published)
	if errors.Is(err, fs.ErrNotExist) {
		read.Missing = t.files
		return read, nil
	}
	if err != nil {
		return read, err
	}
	defer tree.Close()
	for i := range t.files {
		content, err := tree.ReadFile(t.path(i))
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
