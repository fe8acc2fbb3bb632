package publish

import (
	"slices"
	"time"

	"lockstep/internal/stats"
)

// Mark is a step of a sync that was announced, At so long after the sync began.
type Mark struct {
	Step string
	At   time.Duration
}

// Returned is the [Mark] of a sync's end.
const Returned = "returned"

// The phases of a sync of Lockstep's.
const (
	PhaseList  = "list"    // the fence is recorded, the remote lists its refs
	PhaseFetch = "fetch"   // what is missing is fetched, and read
	PhaseMove  = "move"    // it is moved into the store
	PhaseBuild = "build"   // the files
	PhaseIndex = "index"   // the tree's .git
	PhaseDisk  = "to disk" // wait until all of it is there
	PhaseFlip  = "flip"    // the name
	PhaseAfter = "after"   // readers see the tree, and older ones are retired
)

// Phases returns all phases, in the order in which they are done.
func Phases() []string {
	return []string{PhaseList, PhaseFetch, PhaseMove, PhaseBuild, PhaseIndex, PhaseDisk, PhaseFlip, PhaseAfter}
}

// SplitPhases returns how long each phase took: a mark ends the phase that is named for it, whichever
// mark came before. Marks that end none are left out, and so are phases without a mark.
func SplitPhases(marks []Mark) map[string]time.Duration {
	ends := map[string]string{
		"listed": PhaseList, "fetched": PhaseFetch, "moved": PhaseMove, "checked out": PhaseBuild, "indexed": PhaseIndex,
		"built": PhaseDisk, "flipped": PhaseFlip, Returned: PhaseAfter,
	}
	if !slices.ContainsFunc(marks, func(m Mark) bool { return m.Step == "checked out" }) {
		ends["built"] = PhaseBuild
	}
	phases := map[string]time.Duration{}
	last := time.Duration(0)
	for _, m := range marks {
		if phase, ok := ends[m.Step]; ok {
			phases[phase] += m.At - last
			last = m.At
		}
	}
	return phases
}

// Publication is a push on its way to its readers. All times are from the push on.
type Publication struct {
	Seen   time.Duration            `json:"seen_ns"`             // until readers see it
	Synced time.Duration            `json:"synced_ns,omitempty"` // until it is on disk too, where that comes after
	Phases map[string]time.Duration `json:"phases_ns,omitempty"`
	Reused bool                     `json:"reused,omitempty"` // an older tree was brought forward
}

// PublishStep is how long it took from the commit in the store to the name flipped, the index apart.
func (p Publication) PublishStep() time.Duration {
	return p.Phases[PhaseBuild] + p.Phases[PhaseDisk] + p.Phases[PhaseFlip]
}

// Course is how something went that was done several times.
type Course struct {
	P50 time.Duration `json:"p50_ns"`
	P90 time.Duration `json:"p90_ns"`
}

// NewCourse reads the percentiles off durations, in any order.
func NewCourse(durations []time.Duration) Course {
	sorted := slices.Sorted(slices.Values(durations))
	return Course{P50: stats.Percentile(sorted, 0.5), P90: stats.Percentile(sorted, 0.9)}
}
