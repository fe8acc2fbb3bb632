package events

// Phase names what is being done about a change.
type Phase string

// The phases of a sync, in their order. One that is not needed is left out, and after a fetch that did not
// lead to a whole commit it begins once more with [PhaseFetch].
const (
	PhaseList    Phase = "list"    // the remote is asked where its refs are
	PhaseFetch   Phase = "fetch"   // objects are received, in bytes, and then taken in, in objects
	PhaseCompare Phase = "compare" // the commit is compared with what is there
	PhaseBuild   Phase = "build"   // the tree is built, in files
	PhasePublish Phase = "publish" // it is flushed to the disk, and the name is flipped
)

// The phases of other changes: they have one each.
const (
	PhaseRemove Phase = "remove"
	PhaseMove   Phase = "move"
	PhasePoll   Phase = "poll"
)

// Progress is how far the work on a change has come. Within one phase and unit Done never falls.
type Progress struct {
	Phase Phase  `json:"phase,omitempty"` // empty before the first
	Done  int64  `json:"done,omitempty"`
	Total int64  `json:"total,omitempty"` // 0: not known
	Unit  string `json:"unit,omitempty"`  // of Done and Total: "bytes", "objects", "files", or "" when nothing is counted
}
