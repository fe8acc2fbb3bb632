package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/gitserver"
)

// run measures one repository.
type run struct {
	*bench
	*rig.Env
	git      *gitserver.Server
	dir      string // for the files of the contestants
	repo     events.RepoPath
	services []*service // one for each of the versions
	measured Repo
	changed  []string // the files that pushes change, in turn
}

const (
	warmUpPushes = 2 // not counted
	name         = "bench/publish"
)

// measure serves a repository, and measures first clones of it and then pushes to it.
func (b *bench) measure(ctx context.Context, env *rig.Env, subject subject) (measured Repo, err error) {
	dir, err := os.MkdirTemp(b.dir, "")
	if err != nil {
		return Repo{}, err
	}
	defer os.RemoveAll(dir)
	remote, err := os.MkdirTemp(env.Dir, "remote-")
	if err != nil {
		return Repo{}, err
	}
	defer os.RemoveAll(remote)
	git, err := gitserver.Start(remote)
	if err != nil {
		return Repo{}, err
	}
	defer git.Close()
	env.Progress("%s: making the repository", subject.name)
	r := &run{bench: b, Env: env, git: git, dir: dir}
	r.measured = Repo{Name: subject.name, first: b.versions[0].name, Pushes: Turns{}, Clones: Turns{}, Ratios: map[string]Ratios{}}
	if err := r.prepare(ctx, subject); err != nil {
		return Repo{}, err
	}
	defer r.stopServices()
	if err := r.startServices(ctx); err != nil {
		return Repo{}, err
	}
	if b.writer {
		stop := startWriter(filepath.Join(dir, "writer"))
		defer func() { err = errors.Join(err, stop()) }()
	}
	if err := errors.Join(r.firstClones(ctx), r.push(ctx)); err != nil {
		return Repo{}, err
	}
	for _, v := range b.versions {
		r.measured.Ratios[v.name] = r.measured.compare(v.name)
	}
	return r.measured, nil
}

func (r *run) startServices(ctx context.Context) error {
	for i, v := range r.versions {
		s, err := startService(ctx, r.Env, v, filepath.Join(r.dir, fmt.Sprint("volume-", i)), r.idle)
		if err != nil {
			return err
		}
		if r.webhook {
			s.source = "/hooks/bench"
		}
		r.services = append(r.services, s)
	}
	return nil
}

func (r *run) stopServices() {
	for _, s := range r.services {
		s.Close()
	}
}

// turns calls each contestant in turn, beginning with the nth. Before each turn it syncs the file system, so that no contestant
// waits for the writes of another. It does not with a writer, which dirties the file system again at once.
func (r *run) turns(n int, contestants []string, turn func(i int) error) error {
	order := make([]int, len(contestants))
	for i := range order {
		order[i] = i
	}
	for _, i := range rig.Rotated(order, n) {
		if !r.writer {
			if err := syncFileSystem(r.dir); err != nil {
				return err
			}
		}
		if err := turn(i); err != nil {
			return fmt.Errorf("%s: %w", contestants[i], err)
		}
	}
	return nil
}

// firstClones lets all contestants clone the repository, under another name in each round.
func (r *run) firstClones(ctx context.Context) error {
	var names []string
	for _, v := range r.versions {
		names = append(names, v.name)
	}
	names = append(names, SideClone)
	for round := range r.rounds {
		r.Progress("%s: first clones, round %d of %d", r.measured.Name, round+1, r.rounds)
		alias := fmt.Sprint("bench/first-", round)
		repo, err := events.ParseRepoPath(alias)
		if err != nil {
			return err
		}
		if err := r.git.Alias(alias, name); err != nil {
			return err
		}
		clone := filepath.Join(r.dir, "clone")
		err = r.turns(round, names, func(i int) (err error) {
			var p Publication
			if i < len(r.services) {
				p, err = r.services[i].publish(ctx, repo, r.git.URL(alias), r.git.Head(name, "refs/heads/"+gitserver.Main))
			} else {
				p, err = timedGit(ctx, "/", []string{"clone", "--quiet", "--depth", "1", "-c", "gc.auto=0", r.git.URL(alias), clone})
			}
			r.measured.Clones[names[i]] = append(r.measured.Clones[names[i]], p)
			return err
		})
		if err := errors.Join(err, os.RemoveAll(clone)); err != nil {
			return err
		}
	}
	return nil
}

// sides opens all contestants, each on its own clone.
func (r *run) sides(ctx context.Context) (sides []side, names []string, err error) {
	url, commit := r.git.URL(name), r.git.Head(name, "refs/heads/"+gitserver.Main)
	for i, v := range r.versions {
		s := &serviceSide{service: r.services[i], repo: r.repo, url: url}
		if _, err := s.publish(ctx, commit); err != nil {
			return nil, nil, err
		}
		sides, names = append(sides, s), append(names, v.name)
	}
	if slices.Contains(r.peers, peerReset) {
		s, err := openResetSide(ctx, filepath.Join(r.dir, "reset"), url)
		if err != nil {
			return nil, nil, err
		}
		sides, names = append(sides, s), append(names, SideReset)
	}
	if slices.Contains(r.peers, peerWorktree) {
		s, err := openWorktreeSide(ctx, filepath.Join(r.dir, "worktree"), url)
		if err != nil {
			return nil, nil, err
		}
		sides, names = append(sides, s), append(names, SideWorktree)
	}
	return sides, names, nil
}

// push pushes one file at a time, and lets all contestants publish it. Each push begins with another contestant.
func (r *run) push(ctx context.Context) error {
	sides, names, err := r.sides(ctx)
	if err != nil {
		return err
	}
	for n, path := range r.changed {
		r.Progress("%s: push %d of %d", r.measured.Name, n+1, len(r.changed))
		commit, content, err := r.change(ctx, path, n)
		if err != nil {
			return err
		}
		fsyncs, err := twoFsyncs(r.dir)
		if err != nil {
			return err
		}
		err = r.turns(n, names, func(i int) error {
			p, err := turn(ctx, sides[i], commit, path, content)
			if err == nil && n >= warmUpPushes {
				r.measured.Pushes[names[i]] = append(r.measured.Pushes[names[i]], p)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("push %d: %w", n+1, err)
		}
		if n >= warmUpPushes {
			r.measured.Fsyncs = append(r.measured.Fsyncs, fsyncs)
		}
	}
	return nil
}

// turn lets a contestant publish a push, and checks the result.
func turn(ctx context.Context, s side, commit, path, content string) (Publication, error) {
	p, err := s.publish(ctx, commit)
	if err != nil {
		return p, err
	}
	published, err := os.ReadFile(filepath.Join(s.tree(), filepath.FromSlash(path)))
	if err != nil {
		return p, err
	}
	if string(published) != content {
		return p, fmt.Errorf("%s does not have the pushed content", path)
	}
	return p, s.tidy(ctx)
}
