package publish

import (
	"slices"
	"time"

	"lockstep/internal/stats"
)

// mark is a step of a sync and the time since the sync began.
type mark struct {
	Step string
	At   time.Duration
}

// returned is the step that marks the end of a sync.
const returned = "returned"

// The phases of a sync.
const (
	PhaseList  = "list"    // the fence is recorded, the remote lists its refs
	PhaseFetch = "fetch"   // the pack is fetched and read
	PhaseMove  = "move"    // its objects are moved into the store
	PhaseBuild = "build"   // the files are written
	PhaseIndex = "index"   // the tree's .git is written
	PhaseDisk  = "to disk" // until all of it is on disk
	PhaseFlip  = "flip"    // the name is flipped
	PhaseAfter = "after"   // readers see the tree, and older ones are retired
)

// Phases returns all phases in order.
func Phases() []string {
	return []string{PhaseList, PhaseFetch, PhaseMove, PhaseBuild, PhaseIndex, PhaseDisk, PhaseFlip, PhaseAfter}
}

// splitPhases returns how long each phase took. A mark ends its phase, regardless of the mark before. Marks that end no phase are
// ignored, and phases without a mark omitted.
func splitPhases(marks []mark) map[string]time.Duration {
	ends := map[string]string{
		"listed": PhaseList, "fetched": PhaseFetch, "moved": PhaseMove, "checked out": PhaseBuild, "indexed": PhaseIndex,
		"built": PhaseDisk, "flipped": PhaseFlip, returned: PhaseAfter,
	}
	if !slices.ContainsFunc(marks, func(m mark) bool { return m.Step == "checked out" }) {
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

// Publication is the publication of one push. All times are since the push.
type Publication struct {
	Seen   time.Duration            `json:"seen_ns"`             // until readers see it
	Synced time.Duration            `json:"synced_ns,omitempty"` // until it is on disk, if that comes later
	Phases map[string]time.Duration `json:"phases_ns,omitempty"`
	Reused bool                     `json:"reused,omitempty"` // an older tree was recycled
}

// publishStep returns the time from the commit in the store to the flipped name, without the index.
func (p Publication) publishStep() time.Duration {
	return p.Phases[PhaseBuild] + p.Phases[PhaseDisk] + p.Phases[PhaseFlip]
}

// course has percentiles of durations.
type course struct {
	P50 time.Duration `json:"p50_ns"`
	P90 time.Duration `json:"p90_ns"`
}

// newCourse computes the percentiles of durations in any order.
func newCourse(durations []time.Duration) course {
	sorted := slices.Sorted(slices.Values(durations))
	return course{P50: stats.Percentile(sorted, 0.5), P90: stats.Percentile(sorted, 0.9)}
}
