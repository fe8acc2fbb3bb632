package demo

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lockstep/internal/stats"
)

// summary is the outcome of the demonstration.
type summary struct {
	AsPromised   bool           `json:"as_promised"`
	Repositories int            `json:"repositories"`
	Hot          repoStats      `json:"hot"`
	Cold         repoStats      `json:"cold"` // all other repositories
	Parallel     int            `json:"most_repositories_fetched_at_once"`
	TakenOver    float64        `json:"taken_over_seconds"` // from the kill of a worker to its successor's lease
	Lease        float64        `json:"lease_seconds"`
	Results      int            `json:"results"`
	Reads        int            `json:"reads"` // of published trees
	Seconds      float64        `json:"seconds"`
	Violations   map[string]int `json:"violations"` // all must be 0
}

// repoStats are the totals of some repositories.
type repoStats struct {
	Pushes    int   `json:"pushes"`
	Asked     int   `json:"asked"`     // ls-remote requests
	Fetches   int   `json:"fetches"`   // fetches
	Coalesced int   `json:"coalesced"` // pushes settled together with another
	P50MS     int64 `json:"p50_ms"`    // push to result
	P99MS     int64 `json:"p99_ms"`
}

// report returns the summary. All workers and tasks must have stopped.
func (d *demo) report() summary {
	behind, overlaps := 0, 0
	for _, repo := range d.repos {
		if _, commit, err := resolve(filepath.Join(d.root, repo.name)); err != nil || commit != repo.head {
			behind++
		}
		if d.git.Stats(repo.name).MaxActive > 1 {
			overlaps++
		}
	}
	r := summary{
		AsPromised: true, Repositories: len(d.repos), Hot: d.sum(d.repos[:1]), Cold: d.sum(d.repos[1:]), Parallel: d.git.MaxRepos(),
		TakenOver: d.takeover.Seconds(), Lease: d.lease.Seconds(), Results: d.results, Reads: d.reads, Seconds: time.Since(d.began).Seconds(),
		Violations: map[string]int{
			"torn_or_missing_trees": d.torn, "pushes_without_a_result": d.pushes - d.results, "pushes_with_two_results": d.doubled, "failed": d.failed,
			"repositories_behind_their_remote": behind, "repositories_fetched_twice_at_once": overlaps,
		},
	}
	for _, found := range r.Violations {
		r.AsPromised = r.AsPromised && found == 0
	}
	return r
}

func (d *demo) sum(repos []*sampleRepo) (s repoStats) {
	var latencies []time.Duration
	for _, repo := range repos {
		asked := d.git.Stats(repo.name)
		s.Pushes += repo.pushes
		s.Asked += asked.InfoRefs
		s.Fetches += asked.UploadPacks
		latencies = append(latencies, repo.latencies...)
	}
	s.Coalesced = max(0, s.Pushes-s.Asked)
	l := stats.NewLatency(latencies)
	s.P50MS, s.P99MS = l.P50.Milliseconds(), l.P99.Milliseconds()
	return s
}

func (r summary) Table(w io.Writer) {
	row := func(what string, figure, more any) { fmt.Fprintf(w, "%s\t%v\t%v\n", what, figure, more) }
	row("", hotRepo, fmt.Sprintf("%d others", r.Repositories-1))
	row("pushes", r.Hot.Pushes, r.Cold.Pushes)
	row("settled with another", r.Hot.Coalesced, r.Cold.Coalesced)
	row("remote asked", r.Hot.Asked, r.Cold.Asked)
	row("fetched", r.Hot.Fetches, r.Cold.Fetches)
	row("push to result, p50 in ms", r.Hot.P50MS, r.Cold.P50MS)
	row("push to result, p99 in ms", r.Hot.P99MS, r.Cold.P99MS)
	fmt.Fprintln(w)
	row("killed worker replaced after", fmt.Sprintf("%.2f s", r.TakenOver), fmt.Sprintf("lease %.0f s", r.Lease))
	row("repositories fetched at once", r.Parallel, "at most")
	row("trees read file by file", r.Reads, fmt.Sprintf("in %.1f s", r.Seconds))
	row("results", r.Results, fmt.Sprintf("of %d pushes", r.Hot.Pushes+r.Cold.Pushes))
	for _, what := range slices.Sorted(maps.Keys(r.Violations)) {
		verdict := "as promised"
		if r.Violations[what] > 0 {
			verdict = "NOT as promised"
		}
		row(strings.ReplaceAll(what, "_", " "), r.Violations[what], verdict)
	}
}
