package demo

import (
	"fmt"
	"io"
	"path/filepath"
	"time"

	"lockstep/internal/stats"
)

// summary is the outcome of the demonstration.
type summary struct {
	AsPromised   bool    `json:"as_promised"`
	Repositories int     `json:"repositories"`
	Hot          figures `json:"hot"`
	Others       figures `json:"others"`
	Parallel     int     `json:"most_repositories_fetched_at_once"`
	TakenOver    float64 `json:"taken_over_seconds"` // from the kill of a worker to its successor's lease
}

// figures are of some repositories.
type figures struct {
	Pushes  int   `json:"pushes"`
	Fetched int   `json:"fetched"`
	P50MS   int64 `json:"p50_ms"` // push to result
	P99MS   int64 `json:"p99_ms"`
	Reads   int   `json:"reads"` // of published trees, file by file

	// Violations: all must be 0.
	Torn     int `json:"torn"`
	Missing  int `json:"missing"` // results
	Doubled  int `json:"doubled"` // results
	Failed   int `json:"failed"`
	Behind   int `json:"behind"`   // repositories
	Overlaps int `json:"overlaps"` // repositories fetched by two workers at once
}

// report returns the summary. All workers and tasks must have stopped.
func (d *demo) report() summary {
	r := summary{Repositories: repoCount, Hot: d.figures(d.repos[:1]), Others: d.figures(d.repos[1:]),
		Parallel: d.git.MaxRepos(), TakenOver: d.takeover.Seconds()}
	r.AsPromised = r.Hot.violations()+r.Others.violations() == 0
	return r
}

func (d *demo) figures(repos []*sampleRepo) (f figures) {
	var latencies []time.Duration
	for _, repo := range repos {
		served := d.git.Stats(repo.name)
		f.Pushes += repo.pushes
		f.Fetched += served.UploadPacks
		f.Reads += repo.reads
		f.Torn += repo.torn
		f.Missing += repo.pushes - repo.settled
		f.Doubled += repo.doubled
		f.Failed += repo.failed
		latencies = append(latencies, repo.latencies...)
		if _, commit, err := resolve(filepath.Join(d.root, repo.name)); err != nil || commit != repo.head {
			f.Behind++
		}
		if served.MaxActive > 1 {
			f.Overlaps++
		}
	}
	l := stats.NewLatency(latencies)
	f.P50MS, f.P99MS = l.P50.Milliseconds(), l.P99.Milliseconds()
	return f
}

func (f figures) violations() int {
	return f.Torn + f.Missing + f.Doubled + f.Failed + f.Behind + f.Overlaps
}

func (r summary) Table(w io.Writer) {
	row := func(what string, hot, others any) { fmt.Fprintf(w, "%s\t%v\t%v\n", what, hot, others) }
	row("", hotRepo, fmt.Sprintf("%d others", r.Repositories-1))
	row("pushes", r.Hot.Pushes, r.Others.Pushes)
	row("fetched", r.Hot.Fetched, r.Others.Fetched)
	row("push to result, p50 in ms", r.Hot.P50MS, r.Others.P50MS)
	row("push to result, p99 in ms", r.Hot.P99MS, r.Others.P99MS)
	row("trees read file by file", r.Hot.Reads, r.Others.Reads)
	row("torn or missing trees", r.Hot.Torn, r.Others.Torn)
	row("pushes without a result", r.Hot.Missing, r.Others.Missing)
	row("pushes with two results", r.Hot.Doubled, r.Others.Doubled)
	row("failed", r.Hot.Failed, r.Others.Failed)
	row("behind their remote", r.Hot.Behind, r.Others.Behind)
	row("fetched twice at once", r.Hot.Overlaps, r.Others.Overlaps)
	fmt.Fprintf(w, "\nRepositories fetched at once: up to %d.", r.Parallel)
	if r.TakenOver > 0 {
		fmt.Fprintf(w, " Killed worker replaced after %.2f s, with a lease of %.0f s.", r.TakenOver, lease.Seconds())
	}
	fmt.Fprintln(w)
	if r.AsPromised {
		fmt.Fprintln(w, "All as promised: nothing was lost, and no tree was torn.")
	}
}
