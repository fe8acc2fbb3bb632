package publish

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"lockstep/bench/rig"
	"lockstep/internal/stats"
)

// Report compares the contestants.
type Report struct {
	Machine rig.Machine `json:"machine"`
	Pushes  int         `json:"pushes"`
	Rounds  int         `json:"rounds"`
	Repos   []Repo      `json:"repos"`

	// Ratios of the publish step (without the index) in the repository with the most files to that in the one with the
	// fewest: with reused trees, and without. 0 if there is only one repository.
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
func (r *Report) compare() {
	for i := range r.Repos {
		repo := &r.Repos[i]
		linked, reused := repo.Pushes.seen(SideLinked), repo.Pushes.seen(SideReused)
		reset, resetSynced := repo.Pushes.seen(SideReset), repo.Pushes.synced(SideReset)
		repo.LinkedToReset = stats.MedianRatio(linked, reset)
		repo.LinkedToResetSynced = stats.MedianRatio(linked, resetSynced)
		repo.LinkedToWorktree = stats.MedianRatio(linked, repo.Pushes.seen(SideWorktree))
		repo.ReusedToReset = stats.MedianRatio(reused, reset)
		repo.ReusedToResetSynced = stats.MedianRatio(reused, resetSynced)
		first := repo.Clones.seen(SideLinked)
		repo.CloneToClone = stats.MedianRatio(first, repo.Clones.seen(SideClone))
		repo.CloneToCloneSynced = stats.MedianRatio(first, repo.Clones.synced(SideClone))
	}
	if len(r.Repos) > 1 {
		byFiles := func(a, b Repo) int { return cmp.Compare(a.Files, b.Files) }
		smallest, largest := slices.MinFunc(r.Repos, byFiles), slices.MaxFunc(r.Repos, byFiles)
		r.LargestToSmallestReused = float64(largest.publishStep(SideReused).P50) / float64(smallest.publishStep(SideReused).P50)
		r.LargestToSmallestLinked = float64(largest.publishStep(SideLinked).P50) / float64(smallest.publishStep(SideLinked).P50)
	}
}

func (r Repo) publishStep(side string) course {
	return newCourse(r.Pushes.each(side, Publication.publishStep))
}

func (r Repo) phase(side, phase string) course {
	return newCourse(r.Pushes.each(side, func(p Publication) time.Duration { return p.Phases[phase] }))
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintln(w, r.Machine)
	for _, table := range []func(io.Writer){r.printPushes, r.printPhases, r.printSteps, r.printClones} {
		fmt.Fprintln(w)
		tw := rig.NewTable(w)
		table(tw)
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func ratio(r float64) string { return fmt.Sprintf("%.2f", r) }

// heading names a repository in the first column.
func (r Repo) heading() string {
	return fmt.Sprintf("%s: %d files, %.1f MB", r.Name, r.Files, float64(r.Bytes)/1e6)
}

func (r Report) printPushes(w io.Writer) {
	fmt.Fprintf(w, "A push of one file until readers see it: %d pushes, ms; ratios are the pushes' median\n", r.Pushes)
	fmt.Fprintln(w, "\tp50\tp90\tto reset\tto reset, on disk\tto worktree\treused\t")
	none := ""
	for _, repo := range r.Repos {
		fmt.Fprintf(w, "%s\t\t\t\t\t\t\t\n", repo.heading())
		row := func(name string, durations []time.Duration, reset, synced, worktree, reused string) {
			c := newCourse(durations)
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", name, rig.Millis(c.P50), rig.Millis(c.P90), reset, synced, worktree, reused)
		}
		row(SideLinked, repo.Pushes.seen(SideLinked), ratio(repo.LinkedToReset), ratio(repo.LinkedToResetSynced), ratio(repo.LinkedToWorktree), none)
		row(SideReused, repo.Pushes.seen(SideReused), ratio(repo.ReusedToReset), ratio(repo.ReusedToResetSynced), none,
			fmt.Sprintf("%d/%d", repo.Pushes.Reused(SideReused), r.Pushes))
		row(SideReset, repo.Pushes.seen(SideReset), none, none, none, none)
		row(SideReset+", on disk", repo.Pushes.synced(SideReset), none, none, none, none)
		row(SideWorktree, repo.Pushes.seen(SideWorktree), none, none, none, none)
	}
	fmt.Fprintf(w, "at most: %s\t\t\t%s\t\t%s\t\t\n", SideLinked, ratio(targetLinkedToReset), ratio(targetLinkedToWorktree))
	fmt.Fprintf(w, "at most: %s\t\t\t%s\t\t\t\t\n", SideReused, ratio(targetReusedToReset))
}

func (r Report) printPhases(w io.Writer) {
	fmt.Fprint(w, "Where Lockstep's time goes: medians, ms\n\t")
	for _, phase := range Phases() {
		fmt.Fprintf(w, "%s\t", phase)
	}
	fmt.Fprintln(w)
	for _, repo := range r.Repos {
		for _, side := range []string{SideLinked, SideReused} {
			fmt.Fprintf(w, "%s, %s\t", repo.Name, side)
			for _, phase := range Phases() {
				fmt.Fprintf(w, "%s\t", rig.Millis(repo.phase(side, phase).P50))
			}
			fmt.Fprintln(w)
		}
	}
}

func (r Report) printSteps(w io.Writer) {
	fmt.Fprintln(w, "The publish step alone, from the commit in the store to the flipped name: ms")
	fmt.Fprintf(w, "\t%s\t\t\t%s\t\t\t\n", SideReused, SideLinked)
	fmt.Fprintln(w, "\tp50\tp90\tindex, p50\tp50\tp90\tindex, p50\t")
	for _, repo := range r.Repos {
		fmt.Fprintf(w, "%s\t", repo.heading())
		for _, side := range []string{SideReused, SideLinked} {
			step := repo.publishStep(side)
			fmt.Fprintf(w, "%s\t%s\t%s\t", rig.Millis(step.P50), rig.Millis(step.P90), rig.Millis(repo.phase(side, PhaseIndex).P50))
		}
		fmt.Fprintln(w)
	}
	if len(r.Repos) > 1 {
		fmt.Fprintf(w, "most files to fewest\t%s\t\t\t%s\t\t\t\n", ratio(r.LargestToSmallestReused), ratio(r.LargestToSmallestLinked))
		fmt.Fprintf(w, "at most\t%s\t\t\t\t\t\t\n", ratio(targetLargest))
	}
}

func (r Report) printClones(w io.Writer) {
	fmt.Fprintf(w, "A first clone until readers see it: %d rounds, medians, ms; ratios are the rounds' median\n", r.Rounds)
	fmt.Fprintf(w, "\t%s\t%s\tratio\t%s, on disk\tratio\t\n", SideLinked, SideClone, "git clone")
	for _, repo := range r.Repos {
		median := func(durations []time.Duration) string { return rig.Millis(newCourse(durations).P50) }
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t\n", repo.heading(), median(repo.Clones.seen(SideLinked)), median(repo.Clones.seen(SideClone)),
			ratio(repo.CloneToClone), median(repo.Clones.synced(SideClone)), ratio(repo.CloneToCloneSynced))
	}
	fmt.Fprintf(w, "at most\t\t\t%s\t\t\t\n", ratio(targetClone))
}
