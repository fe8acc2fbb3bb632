package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lockstep/bench"
	"lockstep/events"
	"lockstep/internal/gitserver"
)

// publishRun measures with one repository.
type publishRun struct {
	*publishBench
	git  *gitserver.Server
	dir  string // of its own
	repo events.RepoPath

	files   int
	bytes   int64
	changed []string // the files that pushes change, in turn
}

const (
	warmUpPushes  = 2       // not counted: after the first there is a tree to bring forward
	largestPushed = 1 << 20 // bytes of a file that a push changes
)

// prepare makes the repository on the server.
func (r *publishRun) prepare(ctx context.Context, subject publishSubject) (err error) {
	const name = "bench/publish"
	if r.repo, err = events.ParseRepoPath(name); err != nil {
		return err
	}
	if subject.from == "" {
		_, err = r.git.Generate(ctx, name, subject.shape)
	} else {
		err = r.copy(ctx, name, subject.from)
	}
	if err != nil {
		return err
	}
	return r.list(ctx, name)
}

// copy makes a repository whose one commit has the files of another's default branch.
func (r *publishRun) copy(ctx context.Context, name, from string) error {
	if path, err := filepath.Abs(from); err == nil {
		if _, err := os.Stat(path); err == nil {
			from = "file://" + path
		}
	}
	if err := r.git.CreateEmpty(ctx, name); err != nil {
		return err
	}
	if _, err := r.git.Git(ctx, name, "", "fetch", "--quiet", "--depth", "1", from, "HEAD"); err != nil {
		return fmt.Errorf("copy --repo: %w", err)
	}
	tree, err := r.git.Git(ctx, name, "", "rev-parse", "FETCH_HEAD^{tree}")
	if err != nil {
		return err
	}
	if _, err := r.git.CommitTree(ctx, name, gitserver.Main, tree); err != nil {
		return err
	}
	err = os.Remove(filepath.Join(r.git.Dir(name), "shallow")) // or the server would be that, to its clients
	if errors.Is(err, os.ErrNotExist) {
		return nil // the commit copied has no parent
	}
	return err
}

// list finds out what the repository has, and chooses the files that pushes change: as many as there are
// pushes, spread over all regular ones.
func (r *publishRun) list(ctx context.Context, name string) error {
	list, err := r.git.Git(ctx, name, "", "ls-tree", "-r", "-l", "-z", "--full-tree", gitserver.Main)
	if err != nil {
		return err
	}
	var regular []string
	for record := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		about, path, _ := strings.Cut(record, "\t")
		var mode, kind, hash, length string
		if _, err := fmt.Sscan(about, &mode, &kind, &hash, &length); err != nil {
			return fmt.Errorf("git ls-tree says %q: %w", record, err)
		}
		var size int64
		if _, err := fmt.Sscan(length, &size); err != nil && kind == "blob" {
			return fmt.Errorf("git ls-tree says %q: %w", record, err)
		}
		r.files++
		r.bytes += size
		if mode == "100644" && size <= largestPushed {
			regular = append(regular, path)
		}
	}
	if len(regular) == 0 {
		return errors.New("the repository has no file that a push could change")
	}
	for n := range r.pushes + warmUpPushes {
		r.changed = append(r.changed, regular[n*len(regular)/(r.pushes+warmUpPushes)])
	}
	return nil
}

// cloneOnce has all contestants clone the repository for the first time, in turn.
func (r *publishRun) cloneOnce(ctx context.Context, round int, into *publishedRepo) error {
	url := r.git.URL(r.repo.String())
	dir := filepath.Join(r.dir, "first")
	turns := []struct {
		name  string
		clone func() (bench.Publication, error)
	}{
		{sideLinked, func() (bench.Publication, error) {
			side, err := openEngineSide(dir, r.repo, url, false)
			if err != nil {
				return bench.Publication{}, err
			}
			defer side.close()
			return side.publish(ctx)
		}},
		{sideClone, func() (p bench.Publication, err error) {
			began := time.Now()
			if err := cloneWithGit(ctx, url, dir); err != nil {
				return p, err
			}
			p.Seen = time.Since(began)
			err = syncFileSystem(dir)
			p.Synced = time.Since(began)
			return p, err
		}},
	}
	for i := range turns {
		turn := turns[(i+round)%len(turns)]
		if err := syncFileSystem(r.dir); err != nil {
			return err
		}
		p, err := turn.clone()
		if err != nil {
			return fmt.Errorf("%s: %w", turn.name, err)
		}
		into.Clones = into.Clones.add(turn.name, p)
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

func (t publishTurns) add(name string, p bench.Publication) publishTurns {
	if t == nil {
		t = publishTurns{}
	}
	t[name] = append(t[name], p)
	return t
}

// namedSide is a contestant in the race of pushes.
type namedSide struct {
	name string
	publishSide
}

// sides opens all contestants on clones of their own.
func (r *publishRun) sides(ctx context.Context) (sides []namedSide, err error) {
	url := r.git.URL(r.repo.String())
	path := func(name string) string { return filepath.Join(r.dir, name) }
	for _, engine := range []struct {
		name, dir string
		reuse     bool
	}{{sideLinked, "linked", false}, {sideReused, "reused", true}} {
		side, err := openEngineSide(path(engine.dir), r.repo, url, engine.reuse)
		if err != nil {
			return sides, err
		}
		sides = append(sides, namedSide{engine.name, side})
		if _, err := side.publish(ctx); err != nil {
			return sides, err
		}
	}
	reset, err := openResetSide(ctx, path("reset"), url)
	if err != nil {
		return sides, err
	}
	worktree, err := openWorktreeSide(ctx, path("worktree"), url)
	return append(sides, namedSide{sideReset, reset}, namedSide{sideWorktree, worktree}), err
}

// push pushes one file at a time, and has all contestants publish it, each push beginning with another.
func (r *publishRun) push(ctx context.Context, into *publishedRepo) error {
	sides, err := r.sides(ctx)
	defer func() {
		for _, side := range sides {
			side.close()
		}
	}()
	if err != nil {
		return err
	}
	for n, path := range r.changed {
		content, err := r.change(ctx, path, n)
		if err != nil {
			return err
		}
		for i := range sides {
			side := sides[(i+n)%len(sides)]
			p, err := r.turn(ctx, side, path, content)
			if err != nil {
				return fmt.Errorf("push %d: %s: %w", n+1, side.name, err)
			}
			if n >= warmUpPushes {
				into.Pushes = into.Pushes.add(side.name, p)
			}
		}
	}
	return nil
}

// change pushes a file with another line, and returns its content.
func (r *publishRun) change(ctx context.Context, path string, n int) (content string, err error) {
	repo := r.repo.String()
	content, err = r.git.Git(ctx, repo, "", "cat-file", "blob", gitserver.Main+":"+path)
	if err != nil {
		return "", err
	}
	content += fmt.Sprintf("\npush %d\n", n+1)
	_, err = r.git.Commit(ctx, repo, gitserver.Main, gitserver.Edit{Write: map[string]string{path: content}})
	return content, err
}

// turn has a contestant publish a push, and makes sure that it has. Nobody pays for what another has
// written: that is on disk before.
func (r *publishRun) turn(ctx context.Context, side namedSide, path, content string) (bench.Publication, error) {
	if err := syncFileSystem(r.dir); err != nil {
		return bench.Publication{}, err
	}
	p, err := side.publish(ctx)
	if err != nil {
		return p, err
	}
	published, err := os.ReadFile(filepath.Join(side.tree(), filepath.FromSlash(path)))
	if err != nil {
		return p, err
	}
	if string(published) != content {
		return p, fmt.Errorf("%s is not as it was pushed", path)
	}
	return p, side.tidy(ctx)
}

// seen is when readers saw each of a contestant's turns; synced, when each was on disk too.
func (t publishTurns) seen(name string) []time.Duration {
	return t.each(name, func(p bench.Publication) time.Duration { return p.Seen })
}

func (t publishTurns) synced(name string) []time.Duration {
	return t.each(name, func(p bench.Publication) time.Duration { return p.Synced })
}

func (t publishTurns) each(name string, figure func(bench.Publication) time.Duration) []time.Duration {
	durations := make([]time.Duration, len(t[name]))
	for i, p := range t[name] {
		durations[i] = figure(p)
	}
	return durations
}

// reused is how many of a contestant's turns brought an older tree forward.
func (t publishTurns) reused(name string) int {
	return len(slices.DeleteFunc(slices.Clone(t[name]), func(p bench.Publication) bool { return !p.Reused }))
}
