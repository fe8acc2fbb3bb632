package events

// Phase is a step of the work on a change.
type Phase string

// The phases of a sync, in order. Unneeded ones are skipped; an incomplete fetch starts again at [PhaseFetch].
const (
	PhaseList    Phase = "list"    // list the remote's refs
	PhaseFetch   Phase = "fetch"   // receive objects, counted in bytes, then index them, counted in objects
	PhaseCompare Phase = "compare" // compare the commit with the published tree
	PhaseBuild   Phase = "build"   // build the tree, counted in files
	PhasePublish Phase = "publish" // flush to disk and switch the published name

	PhaseWait Phase = "wait" // wait for a work slot, at any time
)

// The other operations have one phase each.
const (
	PhaseRemove Phase = "remove"
	PhaseMove   Phase = "move"
	PhasePoll   Phase = "poll"
)

// Progress is a progress report. Within a phase and unit, Done never decreases.
type Progress struct {
	Phase Phase `json:"phase,omitempty"` // empty before the first phase
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"` // 0 if unknown
	// unit of Done and Total: "bytes", "objects" or "files"; "" if nothing is counted
	Unit string `json:"unit,omitempty"`
}
