package publish

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

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
	services []*service // one for each of the sides
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
	r.measured = Repo{Name: subject.name, Pushes: Turns{}, Clones: Turns{}, ToPush: map[string]float64{}, ToClone: map[string]float64{}}
	if err := r.prepare(ctx, subject); err != nil {
		return Repo{}, err
	}
	defer r.stopServices()
	for i, side := range b.sides {
		s, err := startService(ctx, env, side.Path, filepath.Join(dir, fmt.Sprint("volume-", i)), b.idle)
		if err != nil {
			return Repo{}, err
		}
		r.services = append(r.services, s)
	}
	if err := r.firstClones(ctx); err != nil {
		return Repo{}, err
	}
	if err := r.push(ctx); err != nil {
		return Repo{}, err
	}
	for _, name := range r.measured.Pushers[1:] {
		r.measured.ToPush[name] = r.measured.Pushes.ratio(name)
	}
	for _, name := range r.measured.Cloners[1:] {
		r.measured.ToClone[name] = r.measured.Clones.ratio(name)
	}
	return r.measured, nil
}

func (r *run) stopServices() {
	for _, s := range r.services {
		s.Close()
	}
}

// turns calls each contestant in turn, beginning with the nth. Before each turn it syncs the file system, so that no contestant
// waits for the writes of another.
func (r *run) turns(n int, contestants []string, turn func(i int) error) error {
	order := make([]int, len(contestants))
	for i := range order {
		order[i] = i
	}
	for _, i := range rig.Rotated(order, n) {
		if err := syncFileSystem(r.dir); err != nil {
			return err
		}
		if err := turn(i); err != nil {
			return fmt.Errorf("%s: %w", contestants[i], err)
		}
	}
	return nil
}

// firstClones lets all contestants clone the repository, under another name in each round.
func (r *run) firstClones(ctx context.Context) error {
	names := append(r.names(), SideClone, SideSynced)
	r.measured.Cloners = names
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
		err = r.turns(round, names, func(i int) (err error) {
			var p Publication
			if i < len(r.services) {
				p, err = r.services[i].publish(ctx, repo, r.git.URL(alias), r.git.Head(name, "refs/heads/"+gitserver.Main))
			} else {
				p, err = r.cloneOnce(ctx, r.git.URL(alias), names[i] == SideSynced)
			}
			r.measured.Clones[names[i]] = append(r.measured.Clones[names[i]], p)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

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

// names returns the names of the sides that are Lockstep.
func (r *run) names() (names []string) {
	for _, side := range r.bench.sides {
		names = append(names, side.Name)
	}
	return names
}

// contestants opens all contestants, each on its own clone.
func (r *run) contestants(ctx context.Context) (all []side, names []string, err error) {
	url, commit := r.git.URL(name), r.git.Head(name, "refs/heads/"+gitserver.Main)
	for _, service := range r.services {
		s := &serviceSide{service: service, repo: r.repo, url: url}
		if _, err := s.publish(ctx, commit); err != nil {
			return nil, nil, err
		}
		all = append(all, s)
	}
	reset, err := openResetSide(ctx, filepath.Join(r.dir, "reset"), url, r.checkoutWorkers)
	if err != nil {
		return nil, nil, err
	}
	worktree, err := openWorktreeSide(ctx, filepath.Join(r.dir, "worktree"), url, r.checkoutWorkers, false)
	if err != nil {
		return nil, nil, err
	}
	gitSync, err := openWorktreeSide(ctx, filepath.Join(r.dir, "git-sync"), url, r.checkoutWorkers, true)
	if err != nil {
		return nil, nil, err
	}
	return append(all, reset, worktree, gitSync), append(r.names(), SideReset, SideWorktree, SideGitSync), nil
}

// push pushes one file at a time, and lets all contestants publish it. Each push begins with another contestant.
func (r *run) push(ctx context.Context) error {
	sides, names, err := r.contestants(ctx)
	if err != nil {
		return err
	}
	r.measured.Pushers = names
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
