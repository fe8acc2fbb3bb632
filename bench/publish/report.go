package publish

import (
	"fmt"
	"io"
	"time"

	"lockstep/bench/rig"
)

// Report compares the contestants.
type Report struct {
	Machine    rig.Machine `json:"machine"`
	FileSystem string      `json:"file_system"`
	Writer     bool        `json:"writer"` // beside a neighbour that writes
	Versions   []string    `json:"versions"`
	Pushes     int         `json:"pushes"`
	Repos      []Repo      `json:"repos"`
}

// Repo has the figures of one repository.
type Repo struct {
	Name    string `json:"name"`
	Files   int    `json:"files"`
	Folders int    `json:"folders"`
	Bytes   int64  `json:"bytes"`

	Pushes Turns             `json:"pushes"`
	Clones Turns             `json:"first_clones"`
	Fsyncs []time.Duration   `json:"two_fsyncs_ns"` // of a small file and its folder, once at each push
	Ratios map[string]Ratios `json:"ratios"`        // of each contestant that is Lockstep

	first string // the first contestant
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	neighbour := ""
	if r.Writer {
		neighbour = fmt.Sprintf(", beside a writer of %d files", writerFiles)
	}
	fmt.Fprintf(w, "%v; %s%s\n", r.Machine, r.FileSystem, neighbour)
	for _, table := range []func(io.Writer){r.printPushes, r.printClones} {
		fmt.Fprintln(w)
		tw := rig.NewTable(w)
		table(tw)
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func (r Report) printPushes(w io.Writer) {
	fmt.Fprintf(w, "A push of one file until readers see it: %d pushes, ms; ratios are the pushes' median\n", r.Pushes)
	fmt.Fprintln(w, "\tp50\tp90\tCPU\tto reset\tminus two fsyncs\tto worktree\tto "+SideLockstep+"\t")
	for _, repo := range r.Repos {
		fmt.Fprintf(w, "%s\t\t\t\t\t\t\t\t\n", repo.heading())
		row := func(name string, durations, cpu []time.Duration, ratios Ratios) {
			p50, p90 := percentiles(durations)
			spent, _ := percentiles(cpu)
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", name, rig.Millis(p50), rig.Millis(p90), rig.Millis(spent),
				ratio(ratios.ToReset), ratio(ratios.ToResetMinusFsyncs), ratio(ratios.ToWorktree), ratio(ratios.ToLockstep))
		}
		for _, name := range r.Versions {
			row(name, repo.Pushes.seen(name), repo.Pushes.cpu(name), repo.Ratios[name])
		}
		for _, name := range []string{SideReset, SideWorktree} {
			if len(repo.Pushes[name]) > 0 {
				row(name, repo.Pushes.seen(name), repo.Pushes.cpu(name), Ratios{})
			}
		}
		row("two fsyncs", repo.Fsyncs, nil, Ratios{})
	}
}

func (r Report) printClones(w io.Writer) {
	fmt.Fprintln(w, "First clone, ms")
	fmt.Fprintln(w, "\tp50\tp90\tCPU\tto git clone\t")
	for _, repo := range r.Repos {
		fmt.Fprintf(w, "%s: %d rounds\t\t\t\t\t\n", repo.heading(), len(repo.Clones[SideClone]))
		for _, name := range append(r.Versions[:len(r.Versions):len(r.Versions)], SideClone) {
			p50, p90 := percentiles(repo.Clones.seen(name))
			spent, _ := percentiles(repo.Clones.cpu(name))
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", name, rig.Millis(p50), rig.Millis(p90), rig.Millis(spent), ratio(repo.Ratios[name].CloneToClone))
		}
	}
}

// heading names a repository in the first column.
func (r Repo) heading() string {
	return fmt.Sprintf("%s: %d files in %d folders, %.1f MB", r.Name, r.Files, r.Folders, float64(r.Bytes)/1e6)
}

// ratio formats a ratio; nothing if there is none.
func ratio(r float64) string {
	if r == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", r)
}
