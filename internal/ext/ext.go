// Package ext defines how extensions join a sync. An extension is an optional part of it, with options in watches, see
// [watch.Register], and fields in the state of a repository, both below its name. Each has a package below this one,
// which imports neither the handlers nor another extension.
//
// An extension is called only for a repository whose watches have options of it, or whose state has fields of it, or if
// it asks for that.
package ext

import (
	"context"
	"fmt"
	"slices"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// Extension is an optional part of syncs.
type Extension struct {
	Name string          // of its options in watches, and of its fields in the state: "{name}:…"
	Join func(Sync) Part // returns its part of one sync, poll or removal
	Asks func(Sync) bool // whether it also joins without options and fields; optional
}

// Sync is what is known of a repository before its remote is asked.
type Sync struct {
	Known     state.Repo
	Watches   []watch.Watch                        // all of the repository
	Change    events.Change                        // zero in a poll or removal
	Limiter   func(credential string) wire.Limiter // of the change's requests to hosts; nil in a poll or removal
	Published volume.Published                     // only in a poll
	Asked     func(url string) string              // as [volume.Volume.Asked]
}

// Part is the part of an extension in one sync. It implements any of [Filler], [Admitter], [Describer] and [Recorder].
type Part any

// Filler adds files to trees that are not in the commit. The apps of a ref share one tree, which has what any of them
// wants.
type Filler interface {
	// Fill adds to a request what the tree of a ref is to have. It returns an error if the app's own watches ask for what
	// cannot be done; those of others are ignored then. isDefault reports whether the ref is the default branch.
	Fill(req *volume.SyncRequest, app string, ref events.Ref, isDefault bool) error
	// IsFilled reports for a poll whether the published tree of a ref has that, so that a sync for a watch adds nothing.
	IsFilled(w watch.Watch, ref events.Ref, isDefault bool) bool
}

// Admitter decides whether a commit may be published.
type Admitter interface {
	// Rules returns a digest of the rules for a ref, or "" if there are none. Polls do not request another check of a
	// commit while the digest stays the same. isDefault is as Default of [volume.Candidate].
	Rules(ref events.Ref, isDefault bool) (string, error)

	// Admit returns a [*Refusal] if the candidate may not be published. After any other error, the sync fails and may
	// be retried. Rules was called for the candidate's ref before. The verdicts are stored with the check.
	Admit(context.Context, volume.Candidate) ([]state.Verdict, error)
}

// Refusal is why a commit may not be published.
type Refusal struct {
	App    string // whose rule refuses it
	Reason string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Reason }

// Refusef returns a refusal for an app.
func Refusef(app, format string, args ...any) *Refusal {
	return &Refusal{App: app, Reason: fmt.Sprintf(format, args...)}
}

// Describer adds what the last check of a commit found to a result of an app.
type Describer interface {
	Describe(*events.Result, state.Check)
}

// Recorder has fields in the state. Their names lack the extension's.
type Recorder interface {
	// Record returns the fields to set after a sync. The tip's commit is the published one, which is the previous one
	// if the new one was refused, and "" if none is published.
	Record(tip volume.Tip, isDefault, refused bool) map[string]string
	// Outdated returns the names of the fields that no watch needs any more. All others stay, even if the clone is
	// removed.
	Outdated() []string
}

// Joined is a part with the name of its extension.
type Joined struct {
	Name string
	Part Part
}

// Join returns the parts of the extensions that a sync concerns.
func Join(extensions []Extension, s Sync) (joined []Joined) {
	for _, e := range extensions {
		if isAsked(e.Name, s.Watches) || len(s.Known.ExtensionFields(e.Name)) > 0 || e.Asks != nil && e.Asks(s) {
			joined = append(joined, Joined{e.Name, e.Join(s)})
		}
	}
	return joined
}

func isAsked(name string, watches []watch.Watch) bool {
	return slices.ContainsFunc(watches, func(w watch.Watch) bool { return w.Options[name] != nil })
}
