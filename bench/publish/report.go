package publish

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
	"lockstep/internal/stats"
)

// PublishReport is the whole of it.
type PublishReport struct {
	Machine rig.GitMachine  `json:"machine"`
	Pushes  int             `json:"pushes"`
	Rounds  int             `json:"rounds"`
	Repos   []PublishedRepo `json:"repos"`

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

// Compare fills in the ratios.
func (r *PublishReport) Compare() {
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
		byFiles := func(a, b PublishedRepo) int { return cmp.Compare(a.Files, b.Files) }
		smallest, largest := slices.MinFunc(r.Repos, byFiles), slices.MaxFunc(r.Repos, byFiles)
		r.LargestToSmallestReused = float64(largest.publishStep(SideReused).P50) / float64(smallest.publishStep(SideReused).P50)
		r.LargestToSmallestLinked = float64(largest.publishStep(SideLinked).P50) / float64(smallest.publishStep(SideLinked).P50)
	}
}

func (r PublishedRepo) publishStep(side string) Course {
	return NewCourse(r.Pushes.each(side, Publication.PublishStep))
}

func (r PublishedRepo) phase(side, phase string) Course {
	return NewCourse(r.Pushes.each(side, func(p Publication) time.Duration { return p.Phases[phase] }))
}

func (r PublishReport) Print(w io.Writer, out term.Output) error {
	if !out.IsTable() {
		return out.Document(w, r)
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
func (r PublishedRepo) heading() string {
	return fmt.Sprintf("%s: %d files, %.1f MB", r.Name, r.Files, float64(r.Bytes)/1e6)
}

func (r PublishReport) printPushes(w io.Writer) {
	fmt.Fprintf(w, "A push of one file until readers see it: %d pushes, ms; ratios are the pushes' median\n", r.Pushes)
	fmt.Fprintln(w, "\tp50\tp90\tto reset\tto reset, on disk\tto worktree\treused\t")
	none := ""
	for _, repo := range r.Repos {
		fmt.Fprintf(w, "%s\t\t\t\t\t\t\t\n", repo.heading())
		row := func(name string, durations []time.Duration, reset, synced, worktree, reused string) {
			c := NewCourse(durations)
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", name, rig.Millis(c.P50), rig.Millis(c.P90), reset, synced, worktree, reused)
		}
		row(SideLinked, repo.Pushes.seen(SideLinked), rig.Ratio(repo.LinkedToReset), rig.Ratio(repo.LinkedToResetSynced), rig.Ratio(repo.LinkedToWorktree), none)
		row(SideReused, repo.Pushes.seen(SideReused), rig.Ratio(repo.ReusedToReset), rig.Ratio(repo.ReusedToResetSynced), none,
			fmt.Sprintf("%d/%d", repo.Pushes.Reused(SideReused), r.Pushes))
		row(SideReset, repo.Pushes.seen(SideReset), none, none, none, none)
		row(SideReset+", on disk", repo.Pushes.synced(SideReset), none, none, none, none)
		row(SideWorktree, repo.Pushes.seen(SideWorktree), none, none, none, none)
	}
	fmt.Fprintf(w, "at most: %s\t\t\t%s\t\t%s\t\t\n", SideLinked, rig.Ratio(targetLinkedToReset), rig.Ratio(targetLinkedToWorktree))
	fmt.Fprintf(w, "at most: %s\t\t\t%s\t\t\t\t\n", SideReused, rig.Ratio(targetReusedToReset))
}

func (r PublishReport) printPhases(w io.Writer) {
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

func (r PublishReport) printSteps(w io.Writer) {
	fmt.Fprintln(w, "The publish step alone, from the commit in the store to the name flipped: ms")
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
		fmt.Fprintf(w, "most files to fewest\t%s\t\t\t%s\t\t\t\n", rig.Ratio(r.LargestToSmallestReused), rig.Ratio(r.LargestToSmallestLinked))
		fmt.Fprintf(w, "at most\t%s\t\t\t\t\t\t\n", rig.Ratio(targetLargest))
	}
}

func (r PublishReport) printClones(w io.Writer) {
	fmt.Fprintf(w, "A first clone until readers see it: %d rounds, medians, ms; ratios are the rounds' median\n", r.Rounds)
	fmt.Fprintf(w, "\t%s\t%s\tratio\t%s, on disk\tratio\t\n", SideLinked, SideClone, "git clone")
	for _, repo := range r.Repos {
		median := func(durations []time.Duration) string { return rig.Millis(NewCourse(durations).P50) }
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t\n", repo.heading(), median(repo.Clones.seen(SideLinked)), median(repo.Clones.seen(SideClone)),
			rig.Ratio(repo.CloneToClone), median(repo.Clones.synced(SideClone)), rig.Ratio(repo.CloneToCloneSynced))
	}
	fmt.Fprintf(w, "at most\t\t\t%s\t\t\t\n", rig.Ratio(targetClone))
}
