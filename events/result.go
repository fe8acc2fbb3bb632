package events

import "time"

// ResultType is what a [Result] reports.
type ResultType string

// The types of results, as they stand in a CloudEvents document.
const (
	ResultSynced  ResultType = "lockstep.result.synced.v1"  // the published tree is After
	ResultFailed  ResultType = "lockstep.result.failed.v1"  // given up; see Class and Error
	ResultRemoved ResultType = "lockstep.result.removed.v1" // there is no clone any more, or no tree of Ref if that is set
	ResultMoved   ResultType = "lockstep.result.moved.v1"   // the clone is at To now
	ResultPolled  ResultType = "lockstep.result.polled.v1"  // the remote was asked whether a watched ref has moved; see Due
)

// FileStatus is what became of a file between two commits.
type FileStatus string

// The file statuses.
const (
	FileAdded       FileStatus = "added"
	FileModified    FileStatus = "modified"
	FileDeleted     FileStatus = "deleted"
	FileModeChanged FileStatus = "mode"    // the same content; it has become executable, or is no more
	FileRenamed     FileStatus = "renamed" // the same content, at another path before: From
)

// File is one changed file; its path is relative to the tree, with slashes.
type File struct {
	Path    string     `json:"path"`
	Status  FileStatus `json:"status"`
	From    string     `json:"from,omitempty"`    // where a renamed file was
	Raw     string     `json:"raw,omitempty"`     // the path's bytes in base64, where they are not UTF-8 and JSON cannot have them
	Outside bool       `json:"outside,omitempty"` // a symbolic link that points out of the tree: do not follow it
}

// Result says what became of a [Change].
type Result struct {
	ID     string     // the same each time the same stream entry is worked on
	Type   ResultType // what became of it
	Source string     // which worker, as "/lockstep/worker/w1"
	Time   time.Time  // when it was settled

	Repo       RepoPath      // whose clone
	App        string        // the app that had asked
	Ref        Ref           // the ref, resolved: a synced result never says "default branch"
	Deliveries []string      // ids of the changes that this result answers
	Attempts   int           // how many attempts it took, this one included
	Took       time.Duration // from the start of work to here, to the millisecond
	Fence      uint64        // the lease's fence

	// Of a synced result.
	Before    string // commit this app was last given for this ref; empty the first time
	After     string // commit now published; equal to Before when nothing had changed
	Path      string // the published name, relative to the root
	Tree      string // the immutable tree behind it, relative to the root
	Files     []File // what changed from Before to After
	Full      bool   // Before is not known any more: Files lists the whole tree
	Truncated bool   // there are more files than Files lists
	Until     string // last entry of the changes stream when the remote was asked: the result is as new as that change

	// Of a failed result.
	Class     Class  // the kind of fault
	Error     string // one line: what failed and what to do, never a secret
	Retryable bool   // it might work later: attempts ran out

	To  RepoPath // of a moved result: where the repository is now
	Due int      // of a polled result: so many changes were asked for
}
