package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/server"
	"lockstep/internal/watch"
)

const listShown = 50

// watchLine is a watch as it is shown. To who is not logged in only the upper half is.
type watchLine struct {
	App, Repo, Ref, Poll string

	URL, Credential, Notify, Signed, Silenced string
	Paths                                     []string
	Auto                                      bool
}

type watchesPage struct {
	Watches []watchLine
	Next    string
}

func (d *Dashboard) loadWatches(ctx context.Context, q url.Values, admin bool) (any, error) {
	query := watch.Query{Prefix: strings.TrimSpace(q.Get("prefix")), App: strings.TrimSpace(q.Get("app")), After: q.Get("after"), Limit: listShown}
	page, err := d.cfg.Watches.List(ctx, query)
	if errors.Is(err, watch.ErrBadAfter) {
		return nil, fmt.Errorf("%w: %w", errBadQuery, err)
	}
	if err != nil {
		return nil, err
	}
	shown := watchesPage{Next: page.Next}
	for _, w := range page.Watches {
		line := watchLine{App: w.App, Repo: w.Repo.String(), Ref: w.Ref.String(), Poll: d.pollOf(w.Poll)}
		if admin {
			line.URL, line.Credential, line.Notify, line.Signed, line.Silenced = w.URL, w.Credential, w.NotifyURL, w.NotifySecret, w.Silenced
			line.Paths, line.Auto = w.Paths, w.Auto
		}
		shown.Watches = append(shown.Watches, line)
	}
	return shown, nil
}

// pollOf says how often a watch is polled.
func (d *Dashboard) pollOf(i watch.Interval) string {
	switch {
	case i == watch.Never, i == 0 && d.cfg.PollEvery == 0:
		return "never"
	case i == 0:
		return "every " + took(d.cfg.PollEvery)
	}
	return "every " + took(time.Duration(i))
}

// repoLine is a repository in the list.
type repoLine struct {
	server.RepoSummary
	Ref, Commit string // of one that is published, the default branch if it has a usual name
	Refs        int    // more of them
	Bytes       int64
	Sized       bool // Bytes is known
}

type reposPage struct {
	Repos []repoLine
	Next  string
	Sizes bool // this process sees the volume
}

func (d *Dashboard) loadRepos(ctx context.Context, q url.Values, _ bool) (any, error) {
	var cursor uint64
	if text := q.Get("after"); text != "" {
		var err error
		if cursor, err = strconv.ParseUint(text, 10, 64); err != nil {
			return nil, fmt.Errorf("%w: after: want what the page before gave", errBadQuery)
		}
	}
	page, err := d.cfg.Repos.List(ctx, strings.TrimSpace(q.Get("prefix")), cursor, listShown)
	if err != nil {
		return nil, err
	}
	shown := reposPage{Repos: make([]repoLine, len(page.Repos)), Sizes: d.cfg.Size != nil}
	if page.Next != 0 {
		shown.Next = strconv.FormatUint(page.Next, 10)
	}
	paths := make([]string, len(page.Repos))
	for i, s := range page.Repos {
		shown.Repos[i].RepoSummary, paths[i] = server.NewRepoSummary(s), s.Repo
		shown.Repos[i].Bytes, shown.Repos[i].Sized = d.size(s.Repo)
	}
	heads, err := d.cfg.Repos.ManyHeads(ctx, paths)
	if err != nil {
		return nil, err
	}
	for i, of := range heads {
		line := &shown.Repos[i]
		if line.Ref = usual(of); line.Ref != "" {
			line.Commit, line.Refs = of[line.Ref], len(of)-1
		}
	}
	return shown, nil
}

// usual is the ref to show of several: the one with a usual name, else the first.
func usual(heads map[string]string) string {
	for _, ref := range []string{"refs/heads/main", "refs/heads/master", "refs/heads/trunk"} {
		if heads[ref] != "" {
			return ref
		}
	}
	refs := slices.Sorted(maps.Keys(heads))
	if len(refs) == 0 {
		return ""
	}
	return refs[0]
}

// size is what a repository takes, where this process sees the volume.
func (d *Dashboard) size(path string) (int64, bool) {
	repo, err := events.ParseRepoPath(path)
	if err != nil || d.cfg.Size == nil {
		return 0, false
	}
	return d.cfg.Size(repo)
}

// repoPage is all that is known of one repository.
type repoPage struct {
	server.Repo
	Head  []head
	Apps  []given
	Bytes int64
	Sized bool

	MoreHeads, MoreApps int // that are not shown
}

type head struct{ Ref, Commit string }

type given struct{ App, Ref, Commit string }

const refsShown = 200

func (d *Dashboard) loadRepo(ctx context.Context, q url.Values, _ bool) (any, error) {
	repo, err := events.ParseRepoPath(strings.TrimSpace(q.Get("repo")))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadQuery, err)
	}
	known, err := server.ReadRepo(ctx, d.cfg.Repos, d.cfg.Locks, repo)
	if errors.Is(err, server.ErrUnknownRepo) {
		return nil, fmt.Errorf("%w: nothing is known of %s", errNotThere, repo)
	}
	if err != nil {
		return nil, err
	}
	shown := repoPage{Repo: known}
	shown.Bytes, shown.Sized = d.size(known.Repo)
	for _, ref := range slices.Sorted(maps.Keys(known.Heads)) {
		shown.Head = append(shown.Head, head{ref, known.Heads[ref]})
	}
	for _, g := range known.Given {
		shown.Apps = append(shown.Apps, given{cmp.Or(g.App, "no app"), g.Ref, g.Commit})
	}
	shown.Head, shown.MoreHeads = first(refsShown, shown.Head)
	shown.Apps, shown.MoreApps = first(refsShown, shown.Apps)
	return shown, nil
}

// first is the beginning of a list, and how many more there are.
func first[T any](n int, all []T) (shown []T, more int) {
	n = min(n, len(all))
	return all[:n], len(all) - n
}
