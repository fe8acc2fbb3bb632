package publish

import (
	"fmt"
	"io"
	"slices"
	"time"

	"lockstep/bench/rig"
	"lockstep/internal/stats"
)

// Report compares the contestants.
type Report struct {
	Dir             string `json:"dir"`              // of the volumes
	CheckoutWorkers int    `json:"checkout_workers"` // of git; 0: one per core
	Repos           []Repo `json:"repos"`
}

// Repo has the figures of one repository.
type Repo struct {
	Files  int   `json:"files"`
	Pushes []Row `json:"pushes"`
	Clones []Row `json:"first_clones"`
}

// Row has the turns of one contestant. The nth turns of all contestants are consecutive. The first row is Lockstep's.
type Row struct {
	Name  string        `json:"name"`
	Turns []Publication `json:"turns"`
	Ratio float64       `json:"lockstep_to_it"` // median of the turns' ratios
}

// Publication is the publication of one push or first clone by one contestant.
type Publication struct {
	Seen time.Duration `json:"seen_ns"` // from the push until readers see it
	CPU  time.Duration `json:"cpu_ns"`  // of the worker until it was idle again, or of git; without those of the server and Redis
}

func (r Row) seen() []time.Duration {
	durations := make([]time.Duration, len(r.Turns))
	for i, p := range r.Turns {
		durations[i] = p.Seen
	}
	return durations
}

func (r Row) cpu() time.Duration {
	return stats.MedianOf(r.Turns, func(p Publication) time.Duration { return p.CPU })
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "volumes in %s; git has checkout.workers %d\n", r.Dir, r.CheckoutWorkers)
	for _, repo := range r.Repos {
		fmt.Fprintf(w, "\n%d files, ms; the ratio is the median of the turns' ratios\n", repo.Files)
		tw := rig.NewTable(w)
		fmt.Fprintln(tw, "\tp50\tp90\tCPU\tlockstep to it\tCPU, lockstep to it\t")
		printRows(tw, "push of one file:", repo.Pushes)
		printRows(tw, "first clone:", repo.Clones)
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func printRows(w io.Writer, title string, rows []Row) {
	fmt.Fprintf(w, "%s\t\t\t\t\t\t\n", title)
	for _, row := range rows {
		sorted := slices.Sorted(slices.Values(row.seen()))
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.2f\t%.2f\t\n", row.Name, rig.Millis(stats.Percentile(sorted, 0.5)),
			rig.Millis(stats.Percentile(sorted, 0.9)), rig.Millis(row.cpu()), row.Ratio, stats.Ratio(rows[0].cpu(), row.cpu()))
	}
}
