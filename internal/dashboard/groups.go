package dashboard

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"
)

// groupWithin is the longest time between results of a row: those of changes that one sync answers arrive together.
const groupWithin = 10 * time.Second

// resultRow is one or more results of a ref with the same outcome and commit. The newest gives the figures.
type resultRow struct {
	settled
	First string   // entry of the oldest result, which identifies the row while results are added
	Count int      // results
	Apps  []string // of the results, sorted; without those that name none

	oldest time.Time
}

// groupResults combines results, newest first, into at most n rows, and returns whether some are left.
func groupResults(results []settled, n int) (rows []resultRow, more bool) {
	type key struct{ repo, ref, outcome, after, class string }
	open := map[key]int{}
	for _, s := range results {
		k := key{strings.ToLower(s.Repo), s.Ref, s.Outcome, s.After, s.Class}
		i, found := open[k]
		if found = found && rows[i].oldest.Sub(s.At) <= groupWithin; !found {
			if len(rows) == n {
				more = true
				continue // an older result may still belong to a row
			}
			i = len(rows)
			rows, open[k] = append(rows, resultRow{settled: s}), i
		}
		rows[i].add(s)
	}
	return rows, more
}

func (r *resultRow) add(s settled) {
	r.First, r.oldest = s.Entry, s.At
	r.Count++
	if s.App == "" {
		return
	}
	if i, found := slices.BinarySearch(r.Apps, s.App); !found {
		r.Apps = slices.Insert(r.Apps, i, s.App)
	}
}

// Filter returns the URL of the results of this row's repository with this outcome.
func (r resultRow) Filter() string {
	return link("/dashboard/results", "repo", r.Repo, "outcome", r.Outcome)
}

type resultsPage struct {
	Rows  []resultRow
	More  bool      // there are more rows
	Total int       // results that match
	Since time.Time // of the oldest result searched; zero if there is none
}

const resultRowsShown = 60

// loadResults loads the newest results, filtered by a part of the repository's name, by outcome, and by app.
func (d *Dashboard) loadResults(ctx context.Context, q url.Values, admin bool) (any, error) {
	recent, err := d.tail.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	p := resultsPage{}
	if n := len(recent.Recent); n > 0 {
		p.Since = recent.Recent[n-1].At
	}
	found := matchingResults(recent.Recent, q, admin)
	p.Total = len(found)
	p.Rows, p.More = groupResults(found, resultRowsShown)
	return p, nil
}

// matchingResults filters results. Only admins see, and so filter by, apps.
func matchingResults(results []settled, q url.Values, admin bool) (found []settled) {
	repo := strings.ToLower(strings.TrimSpace(q.Get("repo")))
	outcome, app := q.Get("outcome"), strings.TrimSpace(q.Get("app"))
	for _, s := range results {
		if strings.Contains(strings.ToLower(s.Repo), repo) &&
			(outcome == "" || s.Outcome == outcome || outcome == "other" && s.kind == outOther) &&
			(app == "" || admin && s.App == app) {
			found = append(found, s)
		}
	}
	return found
}
