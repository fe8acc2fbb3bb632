package dashboard

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/operate"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

const listShown = 50

type watchesPage struct {
	Watches []watch.Watch // their remotes, credentials and URLs are for admins only
	Next    string
	Missing []string // cells that do not answer
}

// cellPages is the number of pages of cells with few items that a page shows.
const cellPages = 16

// fill reads pages from a cursor until it has limit rows: one page of a single deployment, several of several cells,
// as they may be short. It returns the cursor of the next page, and the cells that do not answer.
func fill[T any](
	set *cells.Set, after string, limit int,
	read func(after string, limit int) (rows []T, next, missing string, err error),
) (list []T, next string, missing []string, err error) {
	for range cellPages {
		rows, next, away, err := read(after, limit-len(list))
		if err != nil {
			return nil, "", nil, err
		}
		if list = append(list, rows...); away != "" {
			missing = append(missing, away)
		}
		if after = next; next == "" || len(list) == limit || set.IsSingle() {
			break
		}
	}
	return list, after, missing, nil
}

func (d *Dashboard) loadWatches(ctx context.Context, q url.Values, _ bool) (any, error) {
	query := watch.Query{Prefix: strings.TrimSpace(q.Get("prefix")), App: strings.TrimSpace(q.Get("app"))}
	list, next, missing, err := fill(d.cfg.Watches.Cells, q.Get("after"), listShown, func(
		after string, limit int,
	) ([]watch.Watch, string, string, error) {
		query.After, query.Limit = after, limit
		page, err := d.cfg.Watches.Page(ctx, query)
		return page.Watches, page.Next, page.Missing, err
	})
	return watchesPage{list, next, missing}, err
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
	operate.RepoLine
	Bytes int64
	Sized bool // Bytes is known
}

type reposPage struct {
	Repos   []repoLine
	Next    string   // cursor; "" on the last page, and if there is an index
	Missing []string // cells that do not answer, whose repositories the list lacks
	Sizes   bool     // sizes are available in this process

	// With an index of all repositories only.
	Indexed                        bool
	Total, Failing, Never, Removed int
	Found                          int // repositories that match
	From, To                       int // positions among those that match, from 1
	Before, After                  string
	Full                           bool // there are too many for an index
}

const (
	indexWait       = 100 * time.Millisecond // for an index, when the list can do without
	indexSearchWait = 4 * time.Second        // when it cannot
)

// loadRepos loads a page of repositories from the index of all. While that is not ready, it scans Redis for a page.
func (d *Dashboard) loadRepos(ctx context.Context, q url.Values, _ bool) (any, error) {
	wait := indexWait
	if q.Get("q") != "" || q.Get("sort") != "" || q.Get("state") != "" || q.Get("n") != "" {
		wait = indexSearchWait
	}
	number, _ := strconv.ParseUint(q.Get("n"), 10, 64) // 0 if it is invalid
	all, err := d.index.get(ctx, wait)
	if err != nil {
		return nil, err
	}
	shown := reposPage{Sizes: d.cfg.Size != nil}
	var found []state.Summary
	switch prefix := strings.TrimSpace(q.Get("prefix")); {
	case all != nil && !all.full && q.Get("after") == "":
		shown.Missing = all.missing
		found = shown.cut(all, q, prefix, int(min(number, maxIndexed)), d.size)
	default:
		shown.Full = all != nil && all.full
		page, err := d.cfg.Repos.Page(ctx, cmp.Or(prefix, strings.TrimSpace(q.Get("q"))), q.Get("after"), listShown)
		if err != nil {
			return nil, err
		}
		for _, repo := range page.Repos {
			if hasState(repo.Summary, q.Get("state")) {
				found = append(found, repo.Summary)
			}
		}
		if shown.Next = page.Next; page.Missing != "" {
			shown.Missing = []string{page.Missing}
		}
	}
	if err := d.describe(ctx, &shown, found); err != nil {
		return nil, err
	}
	return shown, nil
}

// cut sets the totals and returns the repositories of a page, from 1.
func (p *reposPage) cut(
	all *indexed, q url.Values, prefix string, number int, size func(string) (int64, bool),
) (found []state.Summary) {
	p.Indexed = true
	p.Total, p.Failing, p.Never, p.Removed = len(all.all), all.failing, all.never, all.removed
	match := all.find(cmp.Or(strings.TrimSpace(q.Get("q")), prefix), q.Get("state"), q.Get("sort"), size)
	if prefix != "" {
		match = slices.DeleteFunc(match, func(i int) bool { return !strings.HasPrefix(all.keys[i], strings.ToLower(prefix)) })
	}
	p.Found = len(match)
	number = max(1, min(number, (len(match)+listShown-1)/listShown))
	from := (number - 1) * listShown
	to := min(from+listShown, len(match))
	for _, i := range match[from:to] {
		found = append(found, all.all[i])
	}
	p.From, p.To = min(from+1, to), to
	if number > 1 {
		p.Before = strconv.Itoa(number - 1)
	}
	if to < len(match) {
		p.After = strconv.Itoa(number + 1)
	}
	return found
}

// describe adds the lines of repositories, with sizes and one published ref each.
func (d *Dashboard) describe(ctx context.Context, shown *reposPage, found []state.Summary) error {
	lines, err := d.cfg.Repos.Describe(ctx, found)
	for _, line := range lines {
		bytes, sized := d.size(line.Repo)
		shown.Repos = append(shown.Repos, repoLine{line, bytes, sized})
	}
	return err
}

// size returns the bytes that a repository occupies on the volume, or false if unknown.
func (d *Dashboard) size(path string) (int64, bool) {
	repo, err := events.ParseRepoPath(path)
	if err != nil || d.cfg.Size == nil {
		return 0, false
	}
	return d.cfg.Size(repo)
}

// first returns the first n elements of a list, and the number of those omitted.
func first[T any](n int, all []T) (shown []T, more int) {
	n = min(n, len(all))
	return all[:n], len(all) - n
}
