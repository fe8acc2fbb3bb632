package handlers

import (
	"context"
	"slices"
	"strings"

	"lockstep/events"
	extlfs "lockstep/internal/ext/lfs"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/wire"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// lfsOf returns the LFS files that the watches of a ref select. The apps of a ref share one tree, so it has
// the files that any of them wants: a pointer is of no use to an app that asked for the content, while the
// content harms none.
func lfsOf(watches []watch.Watch, ref events.Ref, isDefault bool) (wanted lfs.Selection) {
	for _, w := range watches {
		if o := extlfs.Of(w); o.Mode == extlfs.Fetch && w.Selects(ref, isDefault) {
			wanted = append(wanted, lfs.Filter{Include: o.Include, Exclude: o.Exclude})
		}
	}
	return wanted
}

// wanted is what a sync fetches in addition to the commit.
type wanted struct {
	lfs        lfs.Selection
	submodules events.Submodules
	scopes     scopes
}

// wanted returns the LFS files and submodules that a change and the watches of its ref request.
func (h *Handlers) wanted(change events.Change, known state.Repo, watches []watch.Watch) (wanted, error) {
	if !slices.ContainsFunc(watches, func(w watch.Watch) bool {
		return extlfs.Of(w).Mode == extlfs.Fetch || submodules.Of(w).Mode != events.SubmodulesOff
	}) {
		return wanted{submodules: change.Submodules}, nil
	}
	ref := change.Ref
	if ref.IsZero() {
		ref, _ = events.ParseRef(known.Default())
	}
	isDefault := change.Ref.IsZero() || ref.String() == known.Default()
	named, err := h.scopesOf(watches, ref, isDefault, change.App)
	return wanted{lfsOf(watches, ref, isDefault), submodulesOf(watches, ref, isDefault).Or(change.Submodules), named}, err
}

// authFor returns [volume.SyncRequest.AuthFor] for the credential of a source.
func (h *Handlers) authFor(from source) func(ctx context.Context, url string) (wire.Auth, error) {
	return func(ctx context.Context, url string) (wire.Auth, error) {
		if !mayHaveSecret(url) {
			return wire.Auth{}, nil
		}
		auth, err := h.Credentials.Resolve(ctx, from.credential, url)
		if events.ClassOf(err) == events.ClassConfig && events.DispositionOf(err) == events.Permanent {
			return wire.Auth{}, nil // not among its URL prefixes
		}
		return auth, err
	}
}

// mayHaveSecret returns false for URLs that no credential is sent to, such as one with "..;", which could
// escape a prefix.
func mayHaveSecret(url string) bool {
	place, _, _ := strings.Cut(url, "?")
	return events.CheckRemote(place) == nil
}
