package follow

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// listRequests is the number of requests at a time for the refs of repositories.
	listRequests = 8

	// listEvery and listEach determine the interval of lists, which are needed because no result notifies an
	// app that it no longer watches a repository. Lists of many repositories are less frequent, because they
	// cost the reader more.
	listEvery = 30 * time.Second
	listEach  = 10 * time.Millisecond // for each repository
)

// list lists what the token reads, and compares it with what is published here: everything at first, when the
// stream restarts, and every [Config.CompareEvery]; otherwise only the differences from the last list. A
// repository that is no longer listed is compared once more before it is removed.
func (f *Follower) list(ctx context.Context, all bool) {
	f.all = f.all || all
	if f.listing {
		f.listAgain = true
		return
	}
	f.listing = true
	all, number := f.all, f.position.number
	f.ask(ctx, func() func() {
		repos, err := f.listAll(ctx)
		return func() { f.noteList(ctx, listing{repos, all, number}, err) }
	})
}

// listing is a list of the reader.
type listing struct {
	repos  []Listed
	all    bool   // compare it with everything that is published
	number uint64 // of the last frame before the request
}

// noteList takes note of a list, or of the error that there is none.
func (f *Follower) noteList(ctx context.Context, l listing, err error) {
	again := f.listAgain
	f.listing, f.listAgain = false, false
	if err != nil {
		f.listTry++
		pause := min(firstBackoff<<min(f.listTry, 10), lastBackoff)
		// not together with other followers that started at the same time
		f.listAt = time.Now().Add(waitOf(err) + pause/2 + rand.N(pause))
		if ctx.Err() == nil {
			f.cfg.Log.WarnContext(ctx, "the reader's repositories cannot be listed, will retry", "error", err)
		}
		return
	}
	if l.all {
		// lists do not find these
		maps.DeleteFunc(f.position.open, func(key string, s span) bool {
			return s.last <= l.number && !strings.HasPrefix(key, purgePrefix)
		})
		f.comparedAt, f.all, f.restart = time.Now(), again, f.restart && again
	}
	before := f.repos
	f.repos = map[string]Listed{}
	for _, one := range l.repos {
		f.repos[one.Repo.Key()] = one
		switch was := before[one.Repo.Key()]; {
		case one.Refs == nil:
			f.compare(ctx, one.Repo)
		case !l.all && slices.Equal(was.Refs, one.Refs):
		case f.touched[one.Repo.Key()] > l.number:
			f.compare(ctx, one.Repo)
		default:
			f.forget(one.Repo, l.number)
			f.compareWith(ctx, one.Repo, one.Refs)
		}
	}
	f.findMissing(ctx, before, l.all)
	if f.listed == 0 {
		f.listed = f.position.number
	}
	pause := listEvery + time.Duration(len(f.repos))*listEach
	f.listTry, f.listAt = 0, time.Now().Add(pause*3/4+rand.N(pause/2))
	if again {
		f.listAt = time.Now()
	}
	f.setStatus(func(s *Status) { s.Repos = len(f.repos) })
}

// findMissing finds the repositories that are published here or were listed before, and are not listed now.
// They are compared at the next heartbeat; until then, the stream may report that they were moved.
func (f *Follower) findMissing(ctx context.Context, before map[string]Listed, all bool) {
	if !all {
		for key, one := range before {
			if _, ok := f.repos[key]; !ok {
				f.missing = append(f.missing, one.Repo)
			}
		}
	} else {
		f.missing = nil
		for repo, err := range f.cfg.Volume.Repos() {
			if err != nil {
				f.cfg.Log.WarnContext(ctx, "repository on the volume cannot be read, skipped", "repo", repo.String(), "error", err)
			} else if _, ok := f.repos[repo.Key()]; !ok {
				f.missing = append(f.missing, repo)
			}
		}
	}
}

// maxUnknown is the number of repositories whose refs cannot be listed, for a reason of their own, beyond
// which there is no list.
const maxUnknown = 16

// listAll lists the selected repositories with their refs, nil for one whose refs cannot be listed.
func (f *Follower) listAll(ctx context.Context) ([]Listed, error) {
	repos, err := f.cfg.Reader.Repos(ctx)
	if err != nil {
		return nil, err
	}
	repos = slices.DeleteFunc(repos, func(one Listed) bool { return !f.selects(one.Repo) })
	var unknown atomic.Int32
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(listRequests)
	for i, one := range repos {
		if one.Refs != nil {
			continue
		}
		g.Go(func() (err error) {
			repos[i].Refs, err = f.cfg.Reader.Refs(ctx, one.Repo)
			switch {
			case errors.Is(err, ErrNotFound): // removed since, or not published yet
				repos[i] = Listed{}
			case err != nil && (unknown.Add(1) > maxUnknown || ctx.Err() != nil):
				return err
			}
			return nil
		})
	}
	err = g.Wait()
	return slices.DeleteFunc(repos, func(one Listed) bool { return one.Repo.IsZero() }), err
}

// checkMissing compares the repositories that are published and were not listed.
func (f *Follower) checkMissing(ctx context.Context) {
	for _, repo := range f.missing {
		f.compare(ctx, repo)
	}
	f.missing = nil
}

// Wipe removes all copies of the reader's repositories, and returns once they are gone: a pinned tree is
// deleted when its last pin is released. Run must have returned.
func (f *Follower) Wipe(ctx context.Context) error {
	clear(f.jobs)
	clear(f.checks)
	var unreadable error
	for repo, err := range f.cfg.Volume.Repos() {
		if err != nil {
			unreadable = errors.Join(unreadable, err)
			continue
		}
		f.remove(ctx, repo, true)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for len(f.jobs) > 0 || len(f.checks) > 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case result := <-f.settled:
			f.settle(result)
		case <-tick.C:
			for key, c := range f.checks {
				if time.Now().After(c.at) {
					delete(f.checks, key)
					f.remove(ctx, c.repo, true)
				}
			}
		}
	}
	return unreadable
}
