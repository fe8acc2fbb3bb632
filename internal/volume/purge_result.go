package volume

import (
	"slices"

	"lockstep/events"
)

// PurgeRequest requests the deletion of a commit, such as one with a secret.
type PurgeRequest struct {
	Repo   events.RepoPath
	Commit string // hash
	Fence  uint64 // of the lease held on Repo; above zero

	// Replaced deletes everything else that is not published as well: where history is cut, a replaced tree may have the secret
	// although nothing shows that it descends from the commit.
	Replaced bool

	DryRun bool // change nothing
}

// PurgeState is the outcome of a purge in one repository.
type PurgeState string

// The states.
const (
	PurgeAbsent    PurgeState = "absent"    // nothing on the volume has it
	PurgePresent   PurgeState = "present"   // dry run: it would be deleted
	PurgePurged    PurgeState = "purged"    // it is deleted, and nothing on the volume has it
	PurgePinned    PurgeState = "pinned"    // readers, workspaces or adopted clones have it; the rest is deleted
	PurgePublished PurgeState = "published" // a published ref has it; nothing is deleted
)

// PurgeResult is the result of a [Volume.Purge].
type PurgeResult struct {
	State     PurgeState
	Published []PurgePublication // that have the commit
	Pins      []Pin              // that keep it
	Trees     []string           // replaced trees that were deleted, or would be, relative to the root
	Objects   int                // objects of the commit, and of the replaced ones that descend from it, that were or would be deleted
	Freed     int64              // bytes; 0 if usage grew
	Usage     Usage              // after

	// Shared are files that the commit introduced, and whose content a kept commit has too. Known is false if its parents are not
	// kept: then these are all files of the commit that are kept.
	Shared      []SharedFile // at most 20
	SharedCount int
	Known       bool

	// Unknown are the commits of replaced trees whose history is cut, so that they may descend from the commit.
	Unknown []string

	MovedTo events.RepoPath // where the repository has moved to; it needs a separate purge
}

// waits reports whether a later purge may delete more, once pins are released.
func (r PurgeResult) waits() bool {
	return slices.ContainsFunc(r.Pins, func(pin Pin) bool { return pin.Kind == PinProcess })
}

// PurgePublication is a published name whose commit is the purged one or descends from it.
type PurgePublication struct {
	Name   string `json:"name"` // relative to the root; for a view, its own
	Ref    string `json:"ref"`
	Commit string `json:"commit"`
	Part   string `json:"submodule,omitempty"` // path of the submodule that is at the commit
}

// SharedFile is a file whose content is kept.
type SharedFile struct {
	Path string `json:"path"` // in the purged commit
	Blob string `json:"blob"`
	In   string `json:"in"` // "name: path" of a published file with that content; "" if only older commits have it
}

// maxShared is the number of shared files that are listed.
const maxShared = 20
