package publish

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/stats"
)

// run measures one repository.
type run struct {
	*bench
	*rig.Env
	git      *gitserver.Server
	dir      string // for the files of the contestants
	files    int
	repo     events.RepoPath
	services []service // one for each of the sides
}

const (
	warmUpPushes = 2 // not counted
	repoName     = "bench/publish"
)

// measure serves a repository of so many files, packed as forges keep theirs, and measures first clones of it and then pushes to it.
func (b *bench) measure(ctx context.Context, env *rig.Env, files int) (measured Repo, err error) {
	dir, err := os.MkdirTemp(b.dir, "")
	if err != nil {
		return measured, err
	}
	defer os.RemoveAll(dir)
	remote, err := os.MkdirTemp(env.Dir, "remote-")
	if err != nil {
		return measured, err
	}
	defer os.RemoveAll(remote)
	git, err := gitserver.Start(remote)
	if err != nil {
		return measured, err
	}
	defer git.Close()
	r := &run{bench: b, Env: env, git: git, dir: dir, files: files}
	if r.repo, err = events.ParseRepoPath(repoName); err != nil {
		return measured, err
	}
	r.Progress("%d files: making the repository", files)
	if _, err := git.Generate(ctx, repoName, gitserver.Shape{Files: files, Bytes: int64(files) * bytesPerFile}); err != nil {
		return measured, err
	}
	if _, err := git.Git(ctx, repoName, "", "repack", "-adfq"); err != nil {
		return measured, err
	}
	for i, side := range b.sides {
		s, err := startService(ctx, env, side, filepath.Join(dir, fmt.Sprint("volume-", i)))
		if err != nil {
			return measured, err
		}
		defer s.stop()
		r.services = append(r.services, s)
	}
	measured.Files = files
	if measured.Clones, err = r.firstClones(ctx); err != nil {
		return measured, err
	}
	measured.Pushes, err = r.push(ctx)
	return measured, err
}

// turns calls each contestant in turn, beginning with another one in each round. Before each turn it syncs the file system, so that no
// contestant waits for the writes of another.
func (r *run) turns(rows []Row, round int, turn func(i int) (Publication, error)) error {
	order := make([]int, len(rows))
	for i := range order {
		order[i] = i
	}
	for _, i := range rig.Rotated(order, round) {
		if err := syncFileSystem(r.dir); err != nil {
			return err
		}
		p, err := turn(i)
		if err != nil {
			return fmt.Errorf("%s: %w", rows[i].Name, err)
		}
		rows[i].Turns = append(rows[i].Turns, p)
	}
	return nil
}

// firstClones lets all contestants clone the repository, under another name in each round.
func (r *run) firstClones(ctx context.Context) ([]Row, error) {
	var rows []Row
	for _, side := range r.sides {
		rows = append(rows, Row{Name: side.Name})
	}
	rows = append(rows, Row{Name: "git clone --depth 1"}, Row{Name: "git clone --depth 1, syncfs"})
	for round := range r.rounds {
		r.Progress("%d files: first clones, round %d of %d", r.files, round+1, r.rounds)
		alias := fmt.Sprint("bench/first-", round)
		repo, err := events.ParseRepoPath(alias)
		if err != nil {
			return nil, err
		}
		if err := r.git.Alias(alias, repoName); err != nil {
			return nil, err
		}
		err = r.turns(rows, round, func(i int) (Publication, error) {
			if i < len(r.services) {
				return r.services[i].publish(ctx, repo, r.git.URL(alias), r.head())
			}
			return r.cloneOnce(ctx, r.git.URL(alias), i == len(rows)-1)
		})
		if err != nil {
			return nil, err
		}
	}
	return compare(rows), nil
}

func (r *run) head() string { return r.git.Head(repoName, "refs/heads/"+gitserver.Main) }

// cloneOnce times a clone by git, which it deletes. With synced, the clock also counts until all of it is on disk.
func (r *run) cloneOnce(ctx context.Context, url string, synced bool) (Publication, error) {
	dir := filepath.Join(r.dir, "clone")
	defer os.RemoveAll(dir)
	p, err := timedGit(ctx, "/", []string{"clone", "--quiet", "--depth", "1", "-c", "gc.auto=0", "-c", fmt.Sprint("checkout.workers=", r.checkoutWorkers), url, dir})
	if err != nil || !synced {
		return p, err
	}
	began := time.Now()
	err = syncFileSystem(dir)
	p.Seen += time.Since(began)
	return p, err
}

// contestants opens all contestants, each on its own clone.
func (r *run) contestants(ctx context.Context) (all []side, err error) {
	for i, s := range r.services {
		all = append(all, r.serviceSide(r.sides[i].Name, s))
		if _, err := all[i].publish(ctx, r.head()); err != nil {
			return nil, err
		}
	}
	reset, err := r.resetSide(ctx)
	if err != nil {
		return nil, err
	}
	gitSync, err := r.gitSyncSide(ctx)
	return append(all, reset, gitSync), err
}

// push pushes one file at a time, and lets all contestants publish it.
func (r *run) push(ctx context.Context) ([]Row, error) {
	sides, err := r.contestants(ctx)
	if err != nil {
		return nil, err
	}
	rows := make([]Row, len(sides))
	for i, side := range sides {
		rows[i].Name = side.name
	}
	list, err := r.git.Git(ctx, repoName, "", "ls-tree", "-r", "--name-only", "--full-tree", gitserver.Main)
	if err != nil {
		return nil, err
	}
	paths := strings.Split(list, "\n")
	pushes := warmUpPushes + r.pushes
	for n := range pushes {
		r.Progress("%d files: push %d of %d", r.files, n+1, pushes)
		path := paths[n*len(paths)/pushes]
		commit, content, err := r.change(ctx, path, n)
		if err != nil {
			return nil, err
		}
		err = r.turns(rows, n, func(i int) (Publication, error) { return turn(ctx, sides[i], commit, path, content) })
		if err != nil {
			return nil, fmt.Errorf("push %d: %w", n+1, err)
		}
	}
	for i := range rows {
		rows[i].Turns = rows[i].Turns[warmUpPushes:]
	}
	return compare(rows), nil
}

// change pushes a file with one more line, and returns the commit and the file's content.
func (r *run) change(ctx context.Context, path string, n int) (commit, content string, err error) {
	content, err = r.git.Git(ctx, repoName, "", "cat-file", "blob", gitserver.Main+":"+path)
	if err != nil {
		return "", "", err
	}
	content += fmt.Sprintf("\npush %d\n", n+1)
	commit, err = r.git.Commit(ctx, repoName, gitserver.Main, gitserver.Edit{Write: map[string]string{path: content}})
	return commit, content, err
}

// turn lets a contestant publish a push, and checks the result.
func turn(ctx context.Context, s side, commit, path, content string) (Publication, error) {
	p, err := s.publish(ctx, commit)
	if err != nil {
		return p, err
	}
	published, err := os.ReadFile(filepath.Join(s.tree, filepath.FromSlash(path)))
	if err != nil {
		return p, err
	}
	if string(published) != content {
		return p, fmt.Errorf("%s does not have the pushed content", path)
	}
	if s.tidy != nil {
		err = s.tidy(ctx)
	}
	return p, err
}

// compare sets the ratios of all rows.
func compare(rows []Row) []Row {
	for i := range rows {
		rows[i].Ratio = stats.MedianRatio(rows[0].seen(), rows[i].seen())
	}
	return rows
}
