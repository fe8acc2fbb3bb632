package handlers

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// Poll asks the remote for its refs, and for a sync of each watched ref that is not where it is known to
// be: on the remote, on the volume, and by the app. So it finds what no webhook told, and what was lost:
// a push, a clone, a result. The changes it asks for are published in the step that settles it, and
// each proves its own app's credential again; this one may be another app's.
//
//	the repository is gone           a failure is reported, and the clone kept: to a token that may not see it
//	                                 any more, a forge says the same. Its own word that it is gone removes it
//	a published ref is gone          a removal is asked for, which looks again; not of the default branch
//	a published ref is not watched   likewise, if it was published for watches alone; of a pattern, the last are watched
//	a watched ref has moved          a sync for each app that watches it and was not given the commit
//	an app was never given it        likewise
//	the volume has another commit    likewise
//	nobody watches it                nothing
func (h *Handlers) Poll(ctx context.Context, job events.Job) (events.Outcome, error) {
	repo := job.Change.Repo
	set, err := h.Watches.Of(ctx, repo)
	if err != nil {
		return events.Outcome{}, redisFault(err)
	}
	result := job.Result(events.ResultPolled)
	if len(set.Watches) == 0 {
		return events.Outcome{Result: result}, nil
	}
	asked, refs, err := h.ask(ctx, repo, set.Watches)
	if err != nil {
		return events.Outcome{}, fmt.Errorf("poll %s: %w", repo, err)
	}
	changes, err := h.behind(ctx, job, set.Watches, asked, refs)
	if err != nil {
		return events.Outcome{}, fmt.Errorf("poll %s: %w", repo, err)
	}
	result.Due = len(changes)
	return events.Outcome{Result: result, Changes: changes}, nil
}

// way is how a remote is asked.
type way struct {
	url, credential string
	foreign         bool
}

// ask asks the remote as the first app whose credential lets it, and returns that app's watch.
func (h *Handlers) ask(ctx context.Context, repo events.RepoPath, watches []watch.Watch) (watch.Watch, wire.Refs, error) {
	var first error
	tried := map[way]bool{}
	for _, w := range watches {
		by := way{w.URL, w.Credential, w.Auto}
		if tried[by] {
			continue
		}
		tried[by] = true
		refs, err := h.look(ctx, repo, by)
		switch class := events.ClassOf(err); {
		case err == nil:
			return w, refs, nil
		case class != events.ClassAuth && class != events.ClassConfig && class != events.ClassNotFound:
			return w, wire.Refs{}, err
		}
		first = cmp.Or(first, err)
	}
	return watch.Watch{}, wire.Refs{}, first
}

func (h *Handlers) look(ctx context.Context, repo events.RepoPath, by way) (wire.Refs, error) {
	secret, err := h.Credentials.Resolve(ctx, by.credential, by.url)
	if err != nil {
		return wire.Refs{}, err
	}
	refs, err := h.Repos.ListRefs(ctx, volume.ListRefsRequest{Repo: repo, URL: by.url, Auth: wire.Auth(secret), Foreign: by.foreign})
	return refs, h.afterRefusal(by.credential, secret, err)
}

// behind asks for what brings volume and apps to where the remote is.
func (h *Handlers) behind(ctx context.Context, job events.Job, watches []watch.Watch, asked watch.Watch, refs wire.Refs) ([]events.Change, error) {
	repo := job.Change.Repo
	known, err := h.States.Load(ctx, repo)
	if err != nil {
		return nil, redisFault(err)
	}
	published, _, err := h.Repos.Published(repo)
	if err != nil {
		return nil, err
	}
	var changes []events.Change
	wanted := map[events.Ref]bool{}
	for _, w := range watches {
		for _, ref := range kept(w.Ref, published) {
			wanted[ref] = true
		}
		for _, ref := range selected(w.Ref, refs) {
			wanted[ref] = true
			commit := refs.Commits[ref.String()]
			if published.Commits[ref] == commit && known.Head(ref) == commit && known.Given(w.App, ref) == commit {
				continue
			}
			if w.Ref.IsDefault() {
				ref = events.Ref{}
			}
			change, err := w.Change(nextID(job, changes), job.Change.Source, ref, "")
			if err != nil {
				return nil, err
			}
			changes = append(changes, change)
		}
	}
	for _, ref := range slices.SortedFunc(maps.Keys(published.Commits), byName) {
		_, there := refs.Commits[ref.String()]
		gone := !there && ref != published.Plain
		dropped := there && !wanted[ref] && known.ForWatches(ref)
		if !gone && !dropped {
			continue
		}
		change, err := events.NewChange(events.Change{
			ID: nextID(job, changes), Type: events.ChangeRemoved, Source: job.Change.Source, Repo: repo,
			URL: asked.URL, Ref: ref, Credential: asked.Credential, Foreign: asked.Auto, Force: dropped,
		})
		if err != nil {
			return nil, err
		}
		changes = append(changes, change)
	}
	return changes, nil
}

// nextID is the same each time the same entry is worked on.
func nextID(job events.Job, changes []events.Change) string {
	return fmt.Sprintf("poll/%s/%d", job.Entry, len(changes)+1)
}

// mostRefs is how many of the refs that match a pattern are kept up to date, and how many are kept: the last ones
// by version.
const mostRefs = 20

// selected are the refs on the remote that a watch selects.
func selected(s watch.Selector, refs wire.Refs) []events.Ref {
	if s.IsDefault() {
		if refs.Commits[refs.Default.String()] == "" {
			return nil
		}
		return []events.Ref{refs.Default}
	}
	return latest(s, func(yield func(events.Ref) bool) {
		for name := range refs.Commits {
			if ref, err := events.ParseRef(name); err == nil && !yield(ref) {
				return
			}
		}
	})
}

// latest are the refs of those given that a selector is about.
func latest(s watch.Selector, refs iter.Seq[events.Ref]) []events.Ref {
	var matching []events.Ref
	for ref := range refs {
		if s.Matches(ref) {
			matching = append(matching, ref)
		}
	}
	slices.SortFunc(matching, byVersion)
	return matching[max(0, len(matching)-mostRefs):]
}

func byName(a, b events.Ref) int { return cmp.Compare(a.String(), b.String()) }

// byVersion compares names with the numbers in them as numbers: v1.9 comes before v1.10.
func byVersion(a, b events.Ref) int {
	x, y := a.String(), b.String()
	for x != "" && y != "" {
		nx, ny := digits(x), digits(y)
		if nx == 0 || ny == 0 {
			if x[0] != y[0] {
				return cmp.Compare(x[0], y[0])
			}
			x, y = x[1:], y[1:]
			continue
		}
		m, n := strings.TrimLeft(x[:nx], "0"), strings.TrimLeft(y[:ny], "0")
		if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
			return c
		}
		x, y = x[nx:], y[ny:]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), byName(a, b))
}

// digits is how many digits a text begins with.
func digits(text string) int {
	return len(text) - len(strings.TrimLeft(text, "0123456789"))
}
