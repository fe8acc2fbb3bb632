package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"lockstep/bench/publish"
	"lockstep/internal/stats"
)

// publishReport is the whole of it.
type publishReport struct {
	Machine gitMachine      `json:"machine"`
	Pushes  int             `json:"pushes"`
	Rounds  int             `json:"rounds"`
	Repos   []publishedRepo `json:"repos"`

	// The publish step of the repository with most files to that of the one with fewest, the index
	// apart: with trees reused, and not. Zero for one repository alone.
	LargestToSmallestReused float64 `json:"largest_to_smallest_reused,omitempty"`
	LargestToSmallestLinked float64 `json:"largest_to_smallest_linked,omitempty"`
}

// Targets, as ratios at most.
const (
	targetLinkedToReset    = 1.0
	targetLinkedToWorktree = 0.1
	targetReusedToReset    = 0.6
	targetLargest          = 3
	targetClone            = 1.3
)

// compare fills in the ratios.
func (r *publishReport) compare() {
	for i := range r.Repos {
		repo := &r.Repos[i]
		linked, reused := repo.Pushes.seen(sideLinked), repo.Pushes.seen(sideReused)
		reset, resetSynced := repo.Pushes.seen(sideReset), repo.Pushes.synced(sideReset)
		repo.LinkedToReset = stats.MedianRatio(linked, reset)
		repo.LinkedToResetSynced = stats.MedianRatio(linked, resetSynced)
		repo.LinkedToWorktree = stats.MedianRatio(linked, repo.Pushes.seen(sideWorktree))
		repo.ReusedToReset = stats.MedianRatio(reused, reset)
		repo.ReusedToResetSynced = stats.MedianRatio(reused, resetSynced)
		first := repo.Clones.seen(sideLinked)
		repo.CloneToClone = stats.MedianRatio(first, repo.Clones.seen(sideClone))
		repo.CloneToCloneSynced = stats.MedianRatio(first, repo.Clones.synced(sideClone))
	}
	if len(r.Repos) > 1 {
		byFiles := func(a, b publishedRepo) int { return cmp.Compare(a.Files, b.Files) }
		smallest, largest := slices.MinFunc(r.Repos, byFiles), slices.MaxFunc(r.Repos, byFiles)
		r.LargestToSmallestReused = float64(largest.publishStep(sideReused).P50) / float64(smallest.publishStep(sideReused).P50)
		r.LargestToSmallestLinked = float64(largest.publishStep(sideLinked).P50) / float64(smallest.publishStep(sideLinked).P50)
	}
}

func (r publishedRepo) publishStep(side string) publish.Course {
	return publish.NewCourse(r.Pushes.each(side, publish.Publication.PublishStep))
}

func (r publishedRepo) phase(side, phase string) publish.Course {
	return publish.NewCourse(r.Pushes.each(side, func(p publish.Publication) time.Duration { return p.Phases[phase] }))
}

func (r publishReport) print(w io.Writer, out output) error {
	if !out.isTable() {
		return out.document(w, r)
	}
	fmt.Fprintln(w, r.Machine)
	for _, table := range []func(io.Writer){r.printPushes, r.printPhases, r.printSteps, r.printClones} {
		fmt.Fprintln(w)
		tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
		table(tw)
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// heading names a repository in the first column.
func (r publishedRepo) heading() string {
	return fmt.Sprintf("%s: %d files, %.1f MB", r.Name, r.Files, float64(r.Bytes)/1e6)
}

func (r publishReport) printPushes(w io.Writer) {
	fmt.Fprintf(w, "A push of one file until readers see it: %d pushes, ms; ratios are the pushes' median\n", r.Pushes)
	fmt.Fprintln(w, "\tp50\tp90\tto reset\tto reset, on disk\tto worktree\treused\t")
	none := ""
	for _, repo := range r.Repos {
		fmt.Fprintf(w, "%s\t\t\t\t\t\t\t\n", repo.heading())
		row := func(name string, durations []time.Duration, reset, synced, worktree, reused string) {
			c := publish.NewCourse(durations)
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", name, millis(c.P50), millis(c.P90), reset, synced, worktree, reused)
		}
		row(sideLinked, repo.Pushes.seen(sideLinked), ratio(repo.LinkedToReset), ratio(repo.LinkedToResetSynced), ratio(repo.LinkedToWorktree), none)
		row(sideReused, repo.Pushes.seen(sideReused), ratio(repo.ReusedToReset), ratio(repo.ReusedToResetSynced), none,
			fmt.Sprintf("%d/%d", repo.Pushes.reused(sideReused), r.Pushes))
		row(sideReset, repo.Pushes.seen(sideReset), none, none, none, none)
		row(sideReset+", on disk", repo.Pushes.synced(sideReset), none, none, none, none)
		row(sideWorktree, repo.Pushes.seen(sideWorktree), none, none, none, none)
	}
	fmt.Fprintf(w, "at most: %s\t\t\t%s\t\t%s\t\t\n", sideLinked, ratio(targetLinkedToReset), ratio(targetLinkedToWorktree))
	fmt.Fprintf(w, "at most: %s\t\t\t%s\t\t\t\t\n", sideReused, ratio(targetReusedToReset))
}

func (r publishReport) printPhases(w io.Writer) {
	fmt.Fprint(w, "Where Lockstep's time goes: medians, ms\n\t")
	for _, phase := range publish.Phases() {
		fmt.Fprintf(w, "%s\t", phase)
	}
	fmt.Fprintln(w)
	for _, repo := range r.Repos {
		for _, side := range []string{sideLinked, sideReused} {
			fmt.Fprintf(w, "%s, %s\t", repo.Name, side)
			for _, phase := range publish.Phases() {
				fmt.Fprintf(w, "%s\t", millis(repo.phase(side, phase).P50))
			}
			fmt.Fprintln(w)
		}
	}
}

func (r publishReport) printSteps(w io.Writer) {
	fmt.Fprintln(w, "The publish step alone, from the commit in the store to the name flipped: ms")
	fmt.Fprintf(w, "\t%s\t\t\t%s\t\t\t\n", sideReused, sideLinked)
	fmt.Fprintln(w, "\tp50\tp90\tindex, p50\tp50\tp90\tindex, p50\t")
	for _, repo := range r.Repos {
		fmt.Fprintf(w, "%s\t", repo.heading())
		for _, side := range []string{sideReused, sideLinked} {
			step := repo.publishStep(side)
			fmt.Fprintf(w, "%s\t%s\t%s\t", millis(step.P50), millis(step.P90), millis(repo.phase(side, publish.PhaseIndex).P50))
		}
		fmt.Fprintln(w)
	}
	if len(r.Repos) > 1 {
		fmt.Fprintf(w, "most files to fewest\t%s\t\t\t%s\t\t\t\n", ratio(r.LargestToSmallestReused), ratio(r.LargestToSmallestLinked))
		fmt.Fprintf(w, "at most\t%s\t\t\t\t\t\t\n", ratio(targetLargest))
	}
}

func (r publishReport) printClones(w io.Writer) {
	fmt.Fprintf(w, "A first clone until readers see it: %d rounds, medians, ms; ratios are the rounds' median\n", r.Rounds)
	fmt.Fprintf(w, "\t%s\t%s\tratio\t%s, on disk\tratio\t\n", sideLinked, sideClone, "git clone")
	for _, repo := range r.Repos {
		median := func(durations []time.Duration) string { return millis(publish.NewCourse(durations).P50) }
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t\n", repo.heading(), median(repo.Clones.seen(sideLinked)), median(repo.Clones.seen(sideClone)),
			ratio(repo.CloneToClone), median(repo.Clones.synced(sideClone)), ratio(repo.CloneToCloneSynced))
	}
	fmt.Fprintf(w, "at most\t\t\t%s\t\t\t\n", ratio(targetClone))
}
