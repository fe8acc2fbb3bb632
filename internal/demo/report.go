package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"lockstep/internal/stats"
	"lockstep/internal/status"
	"lockstep/internal/term"
)

// summary is the outcome of the demonstration.
type summary struct {
	AsPromised   bool      `json:"as_promised"`
	Repositories int       `json:"repositories"`
	Pushes       int       `json:"pushes"`
	Changes      int       `json:"changes"` // one per push and app
	Results      int       `json:"results"`
	Hot          repoStats `json:"hot"`
	Cold         repoStats `json:"cold"` // all other repositories
	Parallel     int       `json:"most_repositories_fetched_at_once"`

	Killed     int     `json:"killed"`             // workers killed with kill -9
	TakenOver  float64 `json:"taken_over_seconds"` // longest takeover
	Lease      float64 `json:"lease_seconds"`
	Delayed    int     `json:"delayed"`             // changes that waited for a killed worker
	DelayedMax float64 `json:"delayed_max_seconds"` // longest such wait

	Reads   int     `json:"reads"`
	Seconds float64 `json:"seconds"`

	// Violations: all must be 0.
	Missing     int   `json:"missing"` // results
	Doubled     int   `json:"doubled"` // duplicate results
	Failed      int   `json:"failed"`
	Torn        int   `json:"torn"`
	Behind      int   `json:"behind"`
	Overlaps    int   `json:"overlaps"` // repositories fetched by two workers at once
	WrongTokens int   `json:"wrong_tokens"`
	Pending     int64 `json:"pending"`
	Dead        int64 `json:"dead"`
}

// repoStats are the totals of some repositories.
type repoStats struct {
	Pushes    int   `json:"pushes"`
	Changes   int   `json:"changes"`
	Asked     int   `json:"asked"`     // ls-remote requests
	Fetches   int   `json:"fetches"`   // fetches
	Coalesced int   `json:"coalesced"` // changes settled together with another
	P50MS     int64 `json:"p50_ms"`    // push to result, without changes that waited for a killed worker
	P99MS     int64 `json:"p99_ms"`
}

// report returns the summary. All workers must have stopped.
func (d *demo) report(ctx context.Context) (summary, error) {
	service, err := status.Read(ctx, d.client, d.config())
	if err != nil {
		return summary{}, err
	}
	b := d.board
	b.mu.Lock()
	defer b.mu.Unlock()
	r := summary{
		Repositories: len(b.repos), Pushes: b.pushesLocked(), Changes: b.issued, Results: b.results,
		Hot: d.sum(b.repos[:1]), Cold: d.sum(b.repos[1:]), Parallel: d.git.MaxRepos(),
		Killed: len(b.takeover), Lease: inSeconds(d.lease), Delayed: len(b.delayed),
		Reads: b.reads, Seconds: inSeconds(time.Since(b.began)),
		Missing: len(b.waiting), Doubled: b.doubled, Failed: b.failed, Torn: b.torn, Behind: d.behind(),
		WrongTokens: d.wrongTokens(), Pending: service.Pending, Dead: service.Dead,
	}
	if r.Killed > 0 {
		r.TakenOver = inSeconds(slices.Max(b.takeover))
	}
	if r.Delayed > 0 {
		r.DelayedMax = inSeconds(slices.Max(b.delayed))
	}
	for _, repo := range b.repos {
		if d.git.Stats(repo.name).MaxActive > 1 {
			r.Overlaps++
		}
	}
	r.AsPromised = r.Results == r.Changes
	for _, p := range r.violations() {
		r.AsPromised = r.AsPromised && p.found == 0
	}
	return r, nil
}

// inSeconds rounds to milliseconds.
func inSeconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

func (d *demo) sum(repos []*sampleRepo) (s repoStats) {
	var latencies []time.Duration
	for _, repo := range repos {
		asked := d.git.Stats(repo.name)
		s.Pushes += repo.pushes
		s.Changes += repo.changes
		s.Asked += asked.InfoRefs - repo.before.InfoRefs
		s.Fetches += asked.UploadPacks - repo.before.UploadPacks
		latencies = append(latencies, repo.latencies...)
	}
	s.Coalesced = max(0, s.Changes-s.Asked)
	l := stats.NewLatency(latencies)
	s.P50MS, s.P99MS = l.P50.Milliseconds(), l.P99.Milliseconds()
	return s
}

// violation is an event that must not happen, and how often it did.
type violation struct {
	what  string
	found int64
}

func (r summary) violations() []violation {
	return []violation{
		{"torn or missing trees", int64(r.Torn)},
		{"repositories behind their remote", int64(r.Behind)},
		{"changes without a result", int64(r.Missing)},
		{"changes with two results", int64(r.Doubled)},
		{"failed", int64(r.Failed)},
		{"pending", r.Pending},
		{"dead letters", r.Dead},
		{"repositories fetched twice at once", int64(r.Overlaps)},
		{"requests with a wrong token", int64(r.WrongTokens)},
	}
}

func (r summary) Table(w io.Writer) {
	fmt.Fprintf(w, "\n\t%9s\t%9s\n", hotRepo, fmt.Sprintf("%d others", r.Repositories-1))
	for _, row := range []struct {
		what      string
		hot, cold any
	}{
		{"pushes", r.Hot.Pushes, r.Cold.Pushes},
		{"changes, one for each app", r.Hot.Changes, r.Cold.Changes},
		{"settled with another", r.Hot.Coalesced, r.Cold.Coalesced},
		{"remote asked", r.Hot.Asked, r.Cold.Asked},
		{"fetched", r.Hot.Fetches, r.Cold.Fetches},
		{"push to result, p50 in ms", r.Hot.P50MS, r.Cold.P50MS},
		{"push to result, p99 in ms", r.Hot.P99MS, r.Cold.P99MS},
	} {
		fmt.Fprintf(w, "%s\t%9v\t%9v\n", row.what, row.hot, row.cold)
	}
	fmt.Fprintf(w, "\nworkers killed\t%7d\ttakeover within %.2f s, lease %.0f s\n", r.Killed, r.TakenOver, r.Lease)
	fmt.Fprintf(w, "changes that waited for them\t%7d\tup to %.2f s; not in the percentiles\n", r.Delayed, r.DelayedMax)
	fmt.Fprintf(w, "repositories fetched at once\t%7d\tat most\n", r.Parallel)
	fmt.Fprintf(w, "trees read file by file\t%7d\t\n", r.Reads)
	fmt.Fprintf(w, "results\t%7d\tof %d changes\n", r.Results, r.Changes)
	for _, p := range r.violations() {
		verdict := "as promised"
		if p.found > 0 {
			verdict = term.Paint(term.MarkBad, "NOT as promised")
		}
		fmt.Fprintf(w, "%s\t%7d\t%s\n", p.what, p.found, verdict)
	}
	fmt.Fprintf(w, "seconds\t%7.1f\t\n", r.Seconds)
}
