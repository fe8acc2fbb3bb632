package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/gitserver"
)

// run measures one repository.
type run struct {
	*bench
	git  *gitserver.Server
	dir  string // for its files
	repo events.RepoPath

	files   int
	bytes   int64
	changed []string // the files that pushes change, in turn
}

const (
	warmUpPushes  = 2       // not counted: they leave a tree to recycle
	largestPushed = 1 << 20 // bytes of a file that a push changes
)

// prepare makes the repository on the server.
func (r *run) prepare(ctx context.Context, subject subject) (err error) {
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

// copy makes a repository with one commit, which has the files of another repository's default branch.
func (r *run) copy(ctx context.Context, name, from string) error {
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
	err = os.Remove(filepath.Join(r.git.Dir(name), "shallow")) // otherwise clients would treat the server as shallow
	if errors.Is(err, os.ErrNotExist) {
		return nil // the copied commit has no parent
	}
	return err
}

// list counts the repository's files and bytes, and chooses a file for each push, spread over all regular files.
func (r *run) list(ctx context.Context, name string) error {
	list, err := r.git.Git(ctx, name, "", "ls-tree", "-r", "-l", "-z", "--full-tree", gitserver.Main)
	if err != nil {
		return err
	}
	var regular []string
	for record := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		about, path, _ := strings.Cut(record, "\t")
		var mode, kind, hash, length string
		if _, err := fmt.Sscan(about, &mode, &kind, &hash, &length); err != nil {
			return fmt.Errorf("git ls-tree printed %q: %w", record, err)
		}
		var size int64
		if _, err := fmt.Sscan(length, &size); err != nil && kind == "blob" {
			return fmt.Errorf("git ls-tree printed %q: %w", record, err)
		}
		r.files++
		r.bytes += size
		if mode == "100644" && size <= largestPushed {
			regular = append(regular, path)
		}
	}
	if len(regular) == 0 {
		return errors.New("the repository has no regular file for a push to change")
	}
	for n := range r.pushes + warmUpPushes {
		r.changed = append(r.changed, regular[n*len(regular)/(r.pushes+warmUpPushes)])
	}
	return nil
}

// cloneOnce lets all contestants make a first clone, in turn.
func (r *run) cloneOnce(ctx context.Context, round int, turns Turns) error {
	url := r.git.URL(r.repo.String())
	dir := filepath.Join(r.dir, "first")
	sides := []struct {
		name  string
		clone func() (Publication, error)
	}{
		{SideLinked, func() (Publication, error) {
			side, err := openEngineSide(dir, r.repo, url, false)
			if err != nil {
				return Publication{}, err
			}
			defer side.Close()
			return side.publish(ctx)
		}},
		{SideClone, func() (p Publication, err error) {
			began := time.Now()
			if err := rig.CloneWithGit(ctx, url, dir); err != nil {
				return p, err
			}
			p.Seen = time.Since(began)
			err = syncFileSystem(dir)
			p.Synced = time.Since(began)
			return p, err
		}},
	}
	for _, side := range rig.Rotated(sides, round) {
		if err := syncFileSystem(r.dir); err != nil {
			return err
		}
		p, err := side.clone()
		if err != nil {
			return fmt.Errorf("%s: %w", side.name, err)
		}
		turns[side.name] = append(turns[side.name], p)
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// namedSide is a contestant that publishes pushes.
type namedSide struct {
	name string
	side
}

// sides opens all contestants, each on its own clone.
func (r *run) sides(ctx context.Context) (sides []namedSide, err error) {
	url := r.git.URL(r.repo.String())
	path := func(name string) string { return filepath.Join(r.dir, name) }
	for _, engine := range []struct {
		name, dir string
		reuse     bool
	}{{SideLinked, "linked", false}, {SideReused, "reused", true}} {
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
	return append(sides, namedSide{SideReset, reset}, namedSide{SideWorktree, worktree}), err
}

// push pushes one file at a time, and lets all contestants publish it. Each push begins with another contestant.
func (r *run) push(ctx context.Context, turns Turns) error {
	sides, err := r.sides(ctx)
	defer func() {
		for _, side := range sides {
			side.Close()
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
		for _, side := range rig.Rotated(sides, n) {
			p, err := r.turn(ctx, side, path, content)
			if err != nil {
				return fmt.Errorf("push %d: %s: %w", n+1, side.name, err)
			}
			if n >= warmUpPushes {
				turns[side.name] = append(turns[side.name], p)
			}
		}
	}
	return nil
}

// change pushes a file with one more line, and returns its content.
func (r *run) change(ctx context.Context, path string, n int) (content string, err error) {
	repo := r.repo.String()
	content, err = r.git.Git(ctx, repo, "", "cat-file", "blob", gitserver.Main+":"+path)
	if err != nil {
		return "", err
	}
	content += fmt.Sprintf("\npush %d\n", n+1)
	_, err = r.git.Commit(ctx, repo, gitserver.Main, gitserver.Edit{Write: map[string]string{path: content}})
	return content, err
}

// turn lets a contestant publish a push, and checks the result. It syncs the file system first, so that no contestant waits for
// writes of the previous one.
func (r *run) turn(ctx context.Context, side namedSide, path, content string) (Publication, error) {
	if err := syncFileSystem(r.dir); err != nil {
		return Publication{}, err
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
		return p, fmt.Errorf("%s does not have the pushed content", path)
	}
	return p, side.tidy(ctx)
}

// seen returns the times until readers saw each push; synced, the times until each push was also on disk.
func (t Turns) seen(name string) []time.Duration {
	return t.each(name, func(p Publication) time.Duration { return p.Seen })
}

func (t Turns) synced(name string) []time.Duration {
	return t.each(name, func(p Publication) time.Duration { return p.Synced })
}

func (t Turns) each(name string, figure func(Publication) time.Duration) []time.Duration {
	durations := make([]time.Duration, len(t[name]))
	for i, p := range t[name] {
		durations[i] = figure(p)
	}
	return durations
}

// Reused counts the turns in which a contestant recycled an older tree.
func (t Turns) Reused(name string) int {
	return len(slices.DeleteFunc(slices.Clone(t[name]), func(p Publication) bool { return !p.Reused }))
}
