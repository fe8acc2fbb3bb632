package publish

import (
	"fmt"
	"io"
	"time"

	"lockstep/bench/rig"
)

// Report compares the contestants.
type Report struct {
	FileSystem      string `json:"file_system"`
	CheckoutWorkers int    `json:"checkout_workers"` // of git; 0: one per core
	Pushes          int    `json:"pushes"`
	Repos           []Repo `json:"repos"`
}

// Repo has the figures of one repository.
type Repo struct {
	Name    string `json:"name"`
	Files   int    `json:"files"`
	Folders int    `json:"folders"`
	Bytes   int64  `json:"bytes"`

	Pushers []string           `json:"pushers"` // contestants, in the order of the table
	Cloners []string           `json:"cloners"`
	Pushes  Turns              `json:"pushes"`
	Clones  Turns              `json:"first_clones"`
	Fsyncs  []time.Duration    `json:"two_fsyncs_ns"`      // of a small file and its folder, once at each push
	ToPush  map[string]float64 `json:"lockstep_to_pusher"` // by contestant: median of the turns' ratios
	ToClone map[string]float64 `json:"lockstep_to_cloner"`
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "volumes on %s; git has checkout.workers %d\n", r.FileSystem, r.CheckoutWorkers)
	tables := []struct {
		title string
		print func(Repo, io.Writer)
	}{
		{fmt.Sprintf("A push of one file until readers see it, %d pushes, ms", r.Pushes), Repo.printPushes},
		{"First clone, ms", Repo.printClones},
	}
	for _, table := range tables {
		fmt.Fprintf(w, "\n%s; the ratio is the median of the turns' ratios\n", table.title)
		tw := rig.NewTable(w)
		fmt.Fprintln(tw, "\tp50\tp90\tCPU\tlockstep to it\tCPU, lockstep to it\t")
		for _, repo := range r.Repos {
			fmt.Fprintf(tw, "%s: %d files in %d folders, %.1f MB\t\t\t\t\t\t\n", repo.Name, repo.Files, repo.Folders, float64(repo.Bytes)/1e6)
			table.print(repo, tw)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func (r Repo) printPushes(w io.Writer) {
	r.Pushes.print(w, r.Pushers)
	p50, p90 := percentiles(r.Fsyncs)
	fmt.Fprintf(w, "two fsyncs\t%s\t%s\t\t\t\t\n", rig.Millis(p50), rig.Millis(p90))
}

func (r Repo) printClones(w io.Writer) { r.Clones.print(w, r.Cloners) }

// print prints a row for each contestant.
func (t Turns) print(w io.Writer, names []string) {
	own, _ := percentiles(t.cpu(rig.SideLockstep))
	for _, name := range names {
		p50, p90 := percentiles(t.seen(name))
		spent, _ := percentiles(t.cpu(name))
		ratio, cpu := fmt.Sprintf("%.2f", t.ratio(name)), quotient(own, spent)
		if name == rig.SideLockstep {
			ratio, cpu = "", ""
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t\n", name, rig.Millis(p50), rig.Millis(p90), rig.Millis(spent), ratio, cpu)
	}
}
