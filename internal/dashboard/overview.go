package dashboard

import (
	"context"
	"html/template"
	"net/url"
	"strings"
	"time"

	"lockstep/events/stream"
	"lockstep/internal/hosts"
	"lockstep/internal/operate"
	"lockstep/internal/schedule"
	"lockstep/internal/server"
	"lockstep/internal/state"
)

// livePages returns the pages that are updated while a browser shows them.
func (d *Dashboard) livePages() []*page {
	return []*page{
		{name: "overview", path: "/{$}", title: "Overview", every: refreshEvery, load: d.loadOverview,
			parts: []string{"verdict", "tiles", "failing", "charts", "edge", "minutes", "busy", "hosts", "results", "followers",
				"cells"}},
		{
			name: "leases", path: "/dashboard/leases", title: "Leases", every: refreshEvery, load: d.loadLeases,
			parts: []string{"leases"},
		},
		{
			name: "workers", path: "/dashboard/workers", title: "Workers", every: 2 * refreshEvery, load: d.loadWorkers,
			parts: []string{"workers", "groups"},
		},
		{
			name: "hosts", path: "/dashboard/hosts", title: "Hosts", every: 2 * refreshEvery, load: d.loadHosts,
			parts: []string{"hosts"},
		},
		{
			name: "outbox", path: "/dashboard/outbox", title: "Outbox", every: 2 * refreshEvery, load: d.loadOutbox,
			params: []string{"app"}, parts: []string{"apps", "boxes"},
		},
		{
			name: "webhooks", path: "/dashboard/webhooks", title: "Webhooks", every: 2 * refreshEvery,
			load: d.loadWebhooks, params: []string{"q", "verdict", "n"}, parts: []string{"hooks"},
		},
		{name: "results", path: "/dashboard/results", title: "Results", every: refreshEvery, load: d.loadResults,
			params: []string{"repo", "outcome", "app", "class", "n"}, parts: []string{"results"}},
		{name: "dead", path: "/dashboard/dead", title: "Dead letters", every: 2 * refreshEvery, expensive: true,
			load: d.loadDead, params: append([]string{"order", "after"}, deadFilters...), parts: []string{"letters"}},
		{name: "watches", path: "/dashboard/watches", title: "Watches", every: 4 * refreshEvery, expensive: true,
			load: d.loadWatches, params: []string{"prefix", "app", "after"}, parts: []string{"watches"}},
		{name: "repos", path: "/dashboard/repos", title: "Repositories", every: 2 * refreshEvery, expensive: true,
			load:   d.loadRepos,
			params: []string{"q", "prefix", "state", "sort", "n", "after"}, parts: []string{"repos"}},
		{name: "repo", path: "/dashboard/repo", title: "Repository", every: 2 * refreshEvery, expensive: true,
			load: d.loadRepo, params: []string{"repo"}, parts: []string{"repo"}},
	}
}

type overview struct {
	Verdict operate.Verdict

	Rate     float64       // results per minute, over the last minute
	P50, P95 time.Duration // latency over the last 5 min
	Known    bool          // P50 and P95 are known
	Outcomes []outcomeCount
	Changes  stream.GroupStatistics
	LagKnown bool // Changes.Lag is known
	Unheard  int  // workers
	Kept     int64
	Dead     int64

	Failing     []failingRepo
	MoreFailing int64 // number of repositories omitted from Failing

	FailingBoxes int64    // repositories whose next notification to an app has failed, of all apps
	FailingApps  []string // some of these apps
	MoreApps     int      // number of apps omitted from FailingApps

	Busy      []state.Activity
	More      int          // number of activities omitted from Busy
	Hosts     []hosts.Host // in use, limited or waited for
	MoreHosts int          // number of hosts omitted from Hosts
	Recent    []resultRow

	Followers     []followerLine // for admins only
	MoreFollowers int            // number of followers omitted from Followers

	Cells        []operate.Cell // of the directory, if there are several
	Cell         string         // the one that the dashboard shows
	MissingCells []string       // that do not answer, whose failing repositories Failing lacks

	Charts  template.HTML // series of completed buckets, as JSON
	Edge    template.HTML // series of the newest buckets, which still change
	Minutes []minute
}

// failingRepo is the last failure of a repository.
type failingRepo struct {
	Repo string
	state.Trouble
	More int // number of further failures of the repository
}

// outcomeCount is the number of results with an outcome in the last 15 min.
type outcomeCount struct {
	Name  string
	Count int64
}

var outcomeNames = []string{"synced", "unchanged", "failed", "other"}

// minute is a row of the charts' table.
type minute struct {
	At            time.Time
	Counts        [outcomes]int64
	P50, P95, P99 time.Duration
	Known         bool
}

const (
	busyShown     = 30
	failingShown  = 10
	failingJudged = 200
	hostsShown    = 30
	resultsShown  = 20
)

func (d *Dashboard) loadOverview(ctx context.Context, _ url.Values, admin bool) (any, error) {
	results, err := d.tail.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	streams, err := d.cfg.Streams.Read(ctx)
	if err != nil {
		return nil, err
	}
	o := overview{}
	o.Recent, _ = groupResults(results.Recent, resultsShown)
	for _, s := range streams {
		o.Dead = s.Dead
		if s.Stream == d.cfg.Changes {
			o.Kept = s.Length
			o.Changes.Lag = s.Length // until the first worker creates the group
			if g, ok := s.Group(d.cfg.Group); ok {
				o.Changes = g
			}
			o.LagKnown = o.Changes.Lag >= 0
		}
	}
	if o.Busy, err = d.cfg.Activities(ctx); err != nil {
		return nil, err
	}
	o.Busy, o.More = first(busyShown, o.Busy)
	failing, err := d.readFailing(ctx, &o, admin)
	if err != nil {
		return nil, err
	}
	if o.FailingBoxes, o.FailingApps, err = d.cfg.Outboxes.Failing(ctx); err != nil {
		return nil, err
	}
	o.FailingApps, o.MoreApps = first(appsShown, o.FailingApps)
	all, err := d.cfg.Hosts.List(ctx)
	if err != nil {
		return nil, err
	}
	o.Hosts, o.MoreHosts = first(hostsShown, hosts.Busy(all))
	watched, err := d.cfg.Watches.Count(ctx)
	if err != nil {
		return nil, err
	}
	var unasked operate.Unasked
	if schedule.Backlog(o.Changes.Lag, o.Changes.Late) <= schedule.MaxBacklog { // else schedulers pause
		if unasked, err = d.cfg.Watches.Overdue(ctx, d.cfg.PollEvery > 0); err != nil {
			return nil, err
		}
	}
	workers, _, err := d.cfg.Workers.List(ctx)
	if err != nil {
		return nil, err
	}
	o.Unheard = operate.Unheard(workers)
	o.Verdict = operate.Facts{
		Watched: watched, Workers: o.Changes.Live, Lost: workers, Dead: o.Dead,
		Hosts: all, Failing: failing.Repos,
		More: failing.Total - int64(len(failing.Repos)), Missing: failing.Missing, Boxes: o.FailingBoxes,
		Apps: o.FailingApps, Groups: operate.GroupsOf(streams...), Unasked: unasked, Full: d.cfg.Full != nil && d.cfg.Full(),
	}.Verdict()
	if d.cfg.Cells != nil {
		o.Cells, o.Cell = d.cfg.Cells(ctx), d.cfg.Cell
	}
	if admin {
		if o.Followers, o.MoreFollowers, err = d.followersShown(ctx); err != nil {
			return nil, err
		}
	}
	o.setFigures(results)
	return o, nil
}

// readFailing adds the repositories that failed last, and returns them. Only admins see what they name.
func (d *Dashboard) readFailing(ctx context.Context, o *overview, admin bool) (state.FailingRepos, error) {
	failing, err := d.cfg.Repos.Failing(ctx, failingJudged)
	for _, r := range failing.Repos {
		if !admin {
			server.HideFailures(r.Failing)
		}
		if len(o.Failing) < failingShown {
			o.Failing = append(o.Failing, failingRepo{r.Repo, r.Failing[0], len(r.Failing) - 1})
		}
	}
	o.MoreFailing, o.MissingCells = failing.Total-int64(len(o.Failing)), failing.Missing
	return failing, err
}

// setFigures computes rates, latencies and charts from recent results.
func (o *overview) setFigures(p snapshot) {
	o.Rate = p.window.perMinute(p.Now)
	recent := p.window.total(p.Now, 5*time.Minute)
	o.P50, o.Known = recent.quantile(0.5)
	o.P95, _ = recent.quantile(0.95)
	all := p.window.total(p.Now, span)
	for i, name := range outcomeNames {
		o.Outcomes = append(o.Outcomes, outcomeCount{name, all.counts[i]})
	}
	edge := p.Now.Truncate(step).Add(-step)
	o.Charts = p.window.series(p.Now.Add(-span), edge).json()
	o.Edge = p.window.series(edge, p.Now.Add(2*step)).json()
	for at := p.Now.Truncate(time.Minute).Add(-time.Minute); at.After(p.Now.Add(-span)); at = at.Add(-time.Minute) {
		b := p.window.total(at.Add(time.Minute-step), time.Minute)
		if b.all() == 0 {
			continue
		}
		m := minute{At: at, Counts: b.counts}
		m.P50, m.Known = b.quantile(0.5)
		m.P95, _ = b.quantile(0.95)
		m.P99, _ = b.quantile(0.99)
		o.Minutes = append(o.Minutes, m)
	}
}

// PageOf returns the URL of the result's repository.
func (s settled) PageOf() string { return link("/dashboard/repo", "repo", s.Repo) }

func refName(ref string) string {
	if ref == "" {
		return "default branch"
	}
	return clip(120, strings.TrimPrefix(ref, "refs/heads/"))
}
