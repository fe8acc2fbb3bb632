package events

import (
	"encoding/base64"
	"strings"
	"time"
)

// ResultType is the kind of a [Result].
type ResultType string

// The types of results, as written in a CloudEvents document.
const (
	ResultSynced  ResultType = "lockstep.result.synced.v1"  // the published tree is After
	ResultFailed  ResultType = "lockstep.result.failed.v1"  // given up; see Class and Error
	ResultRemoved ResultType = "lockstep.result.removed.v1" // the clone is removed, or only the tree of Ref if Ref is set
	ResultMoved   ResultType = "lockstep.result.moved.v1"   // the clone is now at To
	ResultPolled  ResultType = "lockstep.result.polled.v1"  // the remote was polled; see Due
	// View of the published tree has changed; follows a synced result.
	ResultView   ResultType = "lockstep.result.view.v1"
	ResultPurged ResultType = "lockstep.result.purged.v1" // an operator had Commit deleted; delete what was taken from it
)

// FileStatus is how a file changed between two commits.
type FileStatus string

// The file statuses.
const (
	FileAdded       FileStatus = "added"
	FileModified    FileStatus = "modified"
	FileDeleted     FileStatus = "deleted"
	FileModeChanged FileStatus = "mode"    // same content; the executable bit changed
	FileRenamed     FileStatus = "renamed" // same content, previously at From
)

// File is a changed file. Its path is relative to the tree and uses slashes.
type File struct {
	Path   string     `json:"path"`
	Status FileStatus `json:"status"`
	From   string     `json:"from,omitempty"` // previous path of a renamed file
	// the path in base64, if it is not UTF-8 and so not representable in JSON
	Raw     string `json:"raw,omitempty"`
	FromRaw string `json:"from_raw,omitempty"` // like Raw, for From
	Outside bool   `json:"outside,omitempty"`  // a symbolic link that points out of the tree: do not follow it
}

// Name returns the path in its own bytes, which open the file even if they are not UTF-8.
func (f File) Name() string { return nameOf(f.Path, f.Raw) }

// OldName is like Name, for From.
func (f File) OldName() string { return nameOf(f.From, f.FromRaw) }

func nameOf(path, raw string) string {
	if name, err := base64.StdEncoding.DecodeString(raw); err == nil && raw != "" {
		return string(name)
	}
	return path
}

// Verification says who signed a commit or tag, or why it is not verified.
type Verification struct {
	Verified bool `json:"verified"`
	// signer: user ID of an OpenPGP key, or principal of an allowed_signers line
	By      string `json:"by,omitempty"`
	Key     string `json:"key,omitempty"`     // fingerprint of the signer's key
	Format  string `json:"format,omitempty"`  // "openpgp" or "ssh"
	Object  string `json:"object,omitempty"`  // what is signed: "commit" or, for an annotated tag, "tag"
	ID      string `json:"id,omitempty"`      // of the object that By signed or that Reason is about
	Commits int    `json:"commits,omitempty"` // number of commits verified, the last one included; 0 for a tag
	Partial bool   `json:"partial,omitempty"` // older commits since the published one were not verified
	Reason  string `json:"reason,omitempty"`  // why the object is not verified; empty if it is
}

// MissingSubmodule is a submodule that could not be fetched.
type MissingSubmodule struct {
	Path  string `json:"path"`          // relative to the tree
	Raw   string `json:"raw,omitempty"` // the path in base64, if it is not UTF-8
	Class Class  `json:"class"`         // kind of fault
	Error string `json:"error"`         // one line, as in a failed result
}

// Name returns the path as raw bytes, which need not be UTF-8.
func (m MissingSubmodule) Name() string { return nameOf(m.Path, m.Raw) }

// ViewCounts counts the views of a watch, whose changes have results of their own.
type ViewCounts struct {
	Changed   int `json:"changed"`
	Unchanged int `json:"unchanged"`
}

// Result is the outcome of a [Change]. Its JSON is a CloudEvents document, whose data the fields after the first four
// are.
type Result struct {
	// ID names one content: a result of another commit, or of a tree that was published again, has another ID. It is the
	// same for every attempt at the same stream entry that ends with the same tree.
	ID     string     `json:"-"`
	Type   ResultType `json:"-"` // kind of outcome
	Source string     `json:"-"` // worker, such as "/lockstep/worker/w1"
	Time   time.Time  `json:"-"` // when the change was settled

	Repo       RepoPath      `json:"repo"`                 // path of the clone
	App        string        `json:"app,omitempty"`        // app that requested the change
	Ref        Ref           `json:"ref"`                  // resolved ref; never zero in a synced result
	Deliveries []string      `json:"deliveries,omitempty"` // IDs of the changes that this result answers
	Attempts   int           `json:"attempts,omitempty"`   // number of attempts, including this one
	Took       time.Duration `json:"took_ms"`              // duration of the work, in whole milliseconds
	Fence      uint64        `json:"fence,omitempty"`      // fence of the lease

	// Synced and view results only. For a view, Before is the commit of the app's previous result for it, and
	// Files are the view's.
	Before string `json:"before,omitempty"` // commit of this app's previous result for this ref; empty the first time
	After  string `json:"after,omitempty"`  // commit now published; equal to Before if nothing changed, see Unchanged
	// published name, relative to the root; for a view, the name of its tree if it has one
	Path  string `json:"path,omitempty"`
	Tree  string `json:"tree,omitempty"`  // immutable tree behind it, relative to the root
	Files []File `json:"files,omitempty"` // files that changed from Before to After
	// Before is no longer available, its tree was altered or damaged, or the app may have received other commits
	// since, because Redis has lost data: Files lists the whole tree
	Full      bool `json:"full,omitempty"`
	Truncated bool `json:"truncated,omitempty"` // Files is incomplete
	// last entry of the changes stream when the remote was asked: the result covers changes up to it
	Until string `json:"until,omitempty"`

	// Failed results only.
	Class     Class  `json:"class,omitempty"`     // kind of fault
	Error     string `json:"error,omitempty"`     // one line: what failed and what to do; never contains a secret
	Retryable bool   `json:"retryable,omitempty"` // a retry might succeed, but attempts ran out

	To      RepoPath `json:"to,omitzero"`        // moved results: the new path
	Due     int      `json:"due,omitempty"`      // polled results: number of changes requested
	LeftOut int      `json:"left_out,omitempty"` // polled results: number of refs that patterns match, but do not keep

	// Forced reports that history was rewritten: After does not descend from Before or, in a failed result,
	// the refused commit does not descend from one that was published. It is false if the clone's history is
	// too short to tell.
	Forced bool `json:"forced,omitempty"`

	// Verification says who signed what Ref names, or why it is not verified. It is nil unless the app's
	// watch asks for it, or the result failed because of it.
	Verification *Verification `json:"verification,omitempty"`

	// Missing lists submodules whose folders are empty because they could not be fetched; at most 100 of
	// them, and for a view those in it. A watch that asks for submodules with best-effort accepts that.
	Missing []MissingSubmodule `json:"missing_submodules,omitempty"`

	// synced results only: of the app's views of Ref; nil if it has none
	Views *ViewCounts `json:"views,omitempty"`

	// View results only. The view's files are in Tree, among others unless the watch asks for trees of views.
	View    string `json:"view,omitempty"`    // its name
	Subtree string `json:"subtree,omitempty"` // ID of the tree object with only the view's files

	Commit string `json:"commit,omitempty"` // purged results: hash of the commit to delete, with its descendants
}

// Entry returns the ID of the stream entry whose change the result answers, or "" if it answers none. The ID of the
// result has it after that of the change; the name of a delivered tree may follow.
func (r Result) Entry() string {
	if len(r.Deliveries) != 1 {
		return ""
	}
	after, _ := strings.CutPrefix(r.ID, r.Deliveries[0]+"/")
	entry, _, _ := strings.Cut(after, "/")
	return entry
}

// IsDefault reports whether a synced or view result is of the default branch: its Path has no ref.
func (r Result) IsDefault() bool {
	_, suffix, _ := strings.Cut(r.Path, "@")
	return suffix == "" || suffix[0] == '~' // of a view
}

// Unchanged reports whether a synced result has nothing new for its app: the commit is the one that it has,
// in an intact tree.
func (r Result) Unchanged() bool { return r.Before == r.After && !r.Full }
