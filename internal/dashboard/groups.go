package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/internal/operate"
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

// showResult shows one result.
func (d *Dashboard) showResult(w http.ResponseWriter, r *http.Request, _ visitor) {
	result, err := d.cfg.Outcomes.Get(r.Context(), r.FormValue("id"))
	if err != nil {
		d.fail(w, r, err)
		return
	}
	s, _ := settledOf(result.Entry, result.Result)
	d.answer(w, r, http.StatusOK, "result", "Result "+result.Entry, struct {
		operate.Result
		Row settled
	}{result, s})
}

type resultsPage struct {
	Rows  []resultRow
	Next  string    // number of the next page; "" on the last
	Total int       // results that match
	Since time.Time // of the oldest result searched; zero if there is none
}

const resultRowsShown = 60

// loadResults loads the newest results, filtered by a part of the repository's name, by outcome, app and class.
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
	rows, _ := groupResults(found, recentKept)
	p.Rows, p.Next = pageOf(rows, q.Get("n"), resultRowsShown)
	return p, nil
}

// pageOf returns a page of a list, by its number from 1, and the number of the next one, or "".
func pageOf[T any](all []T, number string, size int) (shown []T, next string) {
	n, _ := strconv.ParseUint(number, 10, 16) // 0 if it is invalid
	from := min(int(max(n, 1)-1)*size, len(all))
	shown, more := first(size, all[from:])
	if more > 0 {
		next = strconv.FormatUint(max(n, 1)+1, 10)
	}
	return shown, next
}

// matchingResults filters results. Only admins see, and so filter by, apps and classes.
func matchingResults(results []settled, q url.Values, admin bool) (found []settled) {
	repo := strings.ToLower(strings.TrimSpace(q.Get("repo")))
	outcome, app, class := q.Get("outcome"), strings.TrimSpace(q.Get("app")), q.Get("class")
	for _, s := range results {
		if strings.Contains(strings.ToLower(s.Repo), repo) &&
			(outcome == "" || s.Outcome == outcome || outcome == "other" && s.kind == outOther) &&
			(app == "" || admin && s.App == app) && (class == "" || admin && s.Class == class) {
			found = append(found, s)
		}
	}
	return found
}
