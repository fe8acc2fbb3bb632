package dashboard

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/notify"
	"lockstep/internal/operate"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

type repoPage struct {
	operate.Repo
	Cell string // if it is another one than that of the dashboard
	Head []head
	Apps []lastResult

	Bytes int64
	Sized bool // Bytes is known

	Boxes   []notify.Box // of apps with waiting notifications, by app
	Watches []watch.Watch
	Letters []operate.Letter
	More    bool // there are more letters

	Results []resultRow
	Since   time.Time // older results were not searched; zero if the whole stream was

	MoreHeads, MoreApps, MoreRules, MoreMissing, MoreWatches int // number of rows omitted
}

// head is a published ref.
type head struct {
	Ref, Commit string
	Tree        string // relative to the volume's root; "" if unknown; for admins only
}

// lastResult is the last result of an app.
type lastResult struct {
	operate.LastResult
	Waits bool // for notifications: of this or an earlier commit was not posted yet
}

// Badge returns the style of the state.
func (l lastResult) Badge() string {
	switch l.State {
	case operate.LastUpToDate:
		return "ok"
	case operate.LastFailing:
		return "bad"
	}
	return "warn"
}

const (
	refsShown        = 200
	repoResultsShown = 15
	repoLettersShown = 10
	repoWatchesShown = 100
)

func (d *Dashboard) loadRepo(ctx context.Context, q url.Values, admin bool) (any, error) {
	repo, err := events.ParseRepoPath(strings.TrimSpace(q.Get("repo")))
	if err != nil {
		return nil, badQuery(err)
	}
	cell, err := d.cellOf(repo)
	if err != nil {
		return nil, err
	}
	if cell.name == "" {
		return d.readRepo(ctx, cell, repo, admin)
	}
	ctx, cancel := context.WithTimeout(ctx, cellTimeout)
	defer cancel()
	shown, err := d.readRepo(ctx, cell, repo, admin)
	if err != nil {
		return nil, &cellError{cell.name, err}
	}
	return shown, nil
}

// readRepo reads the page of a repository from its cell.
func (d *Dashboard) readRepo(ctx context.Context, cell repoCell, repo events.RepoPath, admin bool) (any, error) {
	repository, err := d.cfg.Repos.Get(ctx, repo)
	unknown := errors.Is(err, operate.ErrUnknownRepo)
	if err != nil && !unknown {
		return nil, err
	}
	shown := repoPage{Repo: repository, Cell: cell.name}
	if err := shown.readWatches(ctx, d, repo); err != nil {
		return nil, err
	}
	if unknown && len(shown.Watches) == 0 {
		return nil, err
	}
	shown.Repo.Repo = cmp.Or(shown.Repo.Repo, repo.String())
	if shown.Circuit.Phase == "" {
		shown.Circuit.Phase = state.CircuitClosed
	}
	if cell.name == "" { // the volume of another cell is elsewhere
		shown.Bytes, shown.Sized = d.size(repository.Repo)
	}
	past, err := d.histories.of(ctx, cell.results, repo)
	if err != nil {
		return nil, err
	}
	shown.Results, _ = groupResults(past.results, repoResultsShown)
	shown.Since = past.since
	refs, more := first(refsShown, slices.Sorted(maps.Keys(repository.Heads)))
	for _, ref := range refs {
		commit := repository.Heads[ref]
		line := head{Ref: ref, Commit: commit}
		if admin {
			line.Tree = past.tree(ref, commit)
		}
		shown.Head = append(shown.Head, line)
	}
	letters, moreLetters, err := d.cfg.Letters.OfRepo(ctx, operate.LetterQuery{Repo: repo, Limit: repoLettersShown})
	if err != nil {
		return nil, err
	}
	shown.Letters, shown.More = letters, moreLetters && len(letters) == repoLettersShown
	shown.Checks, shown.MoreRules = first(refsShown, repository.Checks)
	if !admin {
		server.HideErrors(shown.Letters)
		server.HideMissing(shown.Lacks)
	}
	rows, lacking := 0, shown.Lacks[:0:0]
	for _, m := range shown.Lacks {
		if shown.MoreMissing += m.Count; rows+len(m.First) <= refsShown {
			rows, lacking = rows+len(m.First), append(lacking, m)
			shown.MoreMissing -= len(m.First)
		}
	}
	shown.Lacks = lacking
	shown.MoreHeads = more
	last, moreApps := first(refsShown, repository.Last)
	shown.MoreApps = moreApps
	if shown.Boxes, err = d.cfg.Outboxes.About(ctx, repo); err != nil {
		return nil, err
	}
	if !admin {
		hideBoxErrors(shown.Boxes)
	}
	for _, one := range last {
		waits := slices.ContainsFunc(shown.Boxes, func(b notify.Box) bool { return b.App == one.App })
		shown.Apps = append(shown.Apps, lastResult{one, waits})
	}
	return shown, nil
}

// readWatches reads the watches of the repository, also of one that no worker has met yet.
func (p *repoPage) readWatches(ctx context.Context, d *Dashboard, repo events.RepoPath) error {
	watches, err := d.cfg.Watches.In(repo)
	if err != nil {
		return err
	}
	page, err := watches.List(ctx, watch.Query{Prefix: repo.Key(), Limit: repoWatchesShown})
	if err != nil {
		return err
	}
	for _, w := range page.Watches {
		if w.Repo.Equal(repo) {
			p.Watches = append(p.Watches, w)
		}
	}
	if page.Next != "" && len(p.Watches) == repoWatchesShown {
		p.MoreWatches = 1
	}
	return nil
}
