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
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

const listShown = 50

type watchLine struct {
	App, Repo, Ref, Poll string

	// For admins only.
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

func (d *Dashboard) pollOf(i watch.Interval) string {
	switch {
	case i == watch.Never, i == 0 && d.cfg.PollEvery == 0:
		return "never"
	case i == 0:
		return "every " + formatDuration(d.cfg.PollEvery)
	}
	return "every " + formatDuration(time.Duration(i))
}

type repoLine struct {
	server.RepoSummary
	Ref, Commit string // one published ref, chosen by mainRef
	Refs        int    // number of other published refs
	Bytes       int64
	Sized       bool // Bytes is known
}

type reposPage struct {
	Repos []repoLine
	Next  string
	Sizes bool // sizes are available in this process
}

func (d *Dashboard) loadRepos(ctx context.Context, q url.Values, _ bool) (any, error) {
	var cursor uint64
	if text := q.Get("after"); text != "" {
		var err error
		if cursor, err = strconv.ParseUint(text, 10, 64); err != nil {
			return nil, fmt.Errorf("%w: after: want the cursor from the previous page", errBadQuery)
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
	for i, byRef := range heads {
		line := &shown.Repos[i]
		if line.Ref = mainRef(byRef); line.Ref != "" {
			line.Commit, line.Refs = byRef[line.Ref], len(byRef)-1
		}
	}
	return shown, nil
}

// mainRef returns the ref with a common default-branch name, else the first ref, or "" if there is none.
func mainRef(heads map[string]string) string {
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

// size returns the bytes that a repository occupies on the volume, or false if unknown.
func (d *Dashboard) size(path string) (int64, bool) {
	repo, err := events.ParseRepoPath(path)
	if err != nil || d.cfg.Size == nil {
		return 0, false
	}
	return d.cfg.Size(repo)
}

type repoPage struct {
	server.Repo
	Head  []head
	Apps  []delivered
	Rules []checkLine
	Bytes int64
	Sized bool // Bytes is known

	MoreHeads, MoreApps, MoreRules int // number of rows omitted
}

type head struct{ Ref, Commit string }

// checkLine is the verdict on a ref's commit.
type checkLine struct {
	Ref, Commit string
	At          time.Time
	Class       string // why it is refused; "" if it is not
	Verified    bool   // all keys accept it
	Unverified  bool   // some keys do not
	By, Key     string // "" unless verified
	Commits     int    // verified; 0 for a tag
	Partial     bool
	Reason      string // why it is refused or not verified; for admins only
}

// checkLines shows the reasons, which name apps and settings, to admins only.
func checkLines(checks []state.Check, admin bool) []checkLine {
	var shown []checkLine
	for _, c := range checks {
		line := checkLine{Ref: c.Ref, Commit: c.Commit, At: c.At, Class: string(c.Class), Reason: c.Reason, Verified: len(c.Verdicts) > 0 && c.Class == ""}
		for _, v := range c.Verdicts {
			line.Verified, line.Unverified = line.Verified && v.Verified, line.Unverified || !v.Verified
			line.Reason = cmp.Or(line.Reason, v.Reason)
			if line.By == "" {
				line.By, line.Key, line.Commits, line.Partial = v.By, v.Key, v.Commits, v.Partial
			}
		}
		if !admin {
			line.Reason = ""
		}
		shown = append(shown, line)
	}
	return shown
}

type delivered struct{ App, Ref, Commit string }

const refsShown = 200

func (d *Dashboard) loadRepo(ctx context.Context, q url.Values, admin bool) (any, error) {
	repo, err := events.ParseRepoPath(strings.TrimSpace(q.Get("repo")))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadQuery, err)
	}
	repository, err := server.ReadRepo(ctx, d.cfg.Repos, d.cfg.Locks, repo)
	if errors.Is(err, server.ErrUnknownRepo) {
		return nil, fmt.Errorf("%w: %s", errNotFound, repo)
	}
	if err != nil {
		return nil, err
	}
	shown := repoPage{Repo: repository}
	shown.Bytes, shown.Sized = d.size(repository.Repo)
	for _, ref := range slices.Sorted(maps.Keys(repository.Heads)) {
		shown.Head = append(shown.Head, head{ref, repository.Heads[ref]})
	}
	shown.Rules, shown.MoreRules = first(refsShown, checkLines(repository.Checks, admin))
	for _, g := range repository.Given {
		shown.Apps = append(shown.Apps, delivered{cmp.Or(g.App, "no app"), g.Ref, g.Commit})
	}
	shown.Head, shown.MoreHeads = first(refsShown, shown.Head)
	shown.Apps, shown.MoreApps = first(refsShown, shown.Apps)
	return shown, nil
}

// first returns the first n elements of a list, and the number of those omitted.
func first[T any](n int, all []T) (shown []T, more int) {
	n = min(n, len(all))
	return all[:n], len(all) - n
}
