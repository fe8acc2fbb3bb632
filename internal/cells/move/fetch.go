package move

import (
	"context"
	"fmt"

	"lockstep/events"
	"lockstep/internal/changes"
	"lockstep/internal/state"
)

// request requests refs from the repository's remote in the new cell, and then a poll, which requests the watched ones.
func (a *attempt) request(ctx context.Context, refs []events.Change) error {
	for _, change := range append(refs, events.Change{Type: events.ChangeDue}) {
		change.Repo, change.Source = a.move.Repo, "/lockstep/move"
		change, err := events.NewChange(change)
		if err != nil {
			return err
		}
		if _, err := changes.Publish(ctx, a.Redis, a.new.Prefix, change); err != nil {
			return fmt.Errorf("request the refs of %s: %w", a.move.Repo, err)
		}
	}
	return nil
}

// refsByHand returns changes that request again the published refs that not only watches have requested. A ref for
// which several credentials were used waits for its next change: it is unknown which app has which.
func refsByHand(known state.Repo) (refs []events.Change) {
	for _, given := range known.AllGiven() {
		ref, err := events.ParseRef(given.Ref)
		if err != nil || known.Head(ref) == "" || known.OnlyWatched(ref) {
			continue
		}
		credential, answer, ok := known.Source(ref)
		if !ok {
			continue
		}
		change := events.Change{URL: answer.URL, Ref: ref, App: given.App, Credential: credential}
		if byDefault, ok := known.RemoteRef(answer.URL, events.Ref{}, credential); ok && byDefault.Ref == ref {
			change.Ref = events.Ref{} // the default branch
		}
		if head := known.Head(ref); head != answer.Commit { // it was pinned
			change.After, change.Pin = head, true
		}
		refs = append(refs, change)
	}
	return refs
}
