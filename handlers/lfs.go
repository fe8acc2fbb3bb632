package handlers

import (
	"context"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/state"
)

// LFS selects files in Git LFS: those that one of the filters selects. The zero LFS selects none. The apps of a ref share one
// tree, so it has the files that any of them wants: a pointer is of no use to an app that asked for the content, while the
// content harms none.
type LFS []LFSFilter

// LFSFilter selects files by globs, in which ** crosses folders. Without Include it selects all, or those of
// lfs.fetchinclude in .lfsconfig; without Exclude it excludes those of lfs.fetchexclude.
type LFSFilter struct{ Include, Exclude []string }

// key is equal for filters with the same globs in any order.
func (f LFSFilter) key() string {
	sorted := func(globs []string) string {
		return strings.Join(slices.Compact(slices.Sorted(slices.Values(globs))), "\n")
	}
	return sorted(f.Include) + "\x00" + sorted(f.Exclude)
}

func (l LFS) keys() (keys []string) {
	for _, f := range l {
		keys = append(keys, f.key())
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (l LFS) equal(other LFS) bool { return slices.Equal(l.keys(), other.keys()) }

// lfsOf returns the LFS files that the watches of a ref select.
func lfsOf(watches []Watch, ref events.Ref, isDefault bool) (wanted LFS) {
	for _, w := range watches {
		if w.LFS != nil && w.selects(ref, isDefault) {
			wanted = append(wanted, *w.LFS)
		}
	}
	return wanted
}

// wanted is what a sync fetches in addition to the commit.
type wanted struct {
	lfs        LFS
	submodules events.Submodules
	scopes     scopes
}

// wanted returns the LFS files and submodules that a change and the watches of its ref request.
func (h *Handlers) wanted(change events.Change, known state.Repo, watches []Watch) (wanted, error) {
	if !slices.ContainsFunc(watches, func(w Watch) bool { return w.LFS != nil || w.Submodules != events.SubmodulesOff }) {
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

// secretFor returns [Remote.SecretFor] for the credential of a source.
func (h *Handlers) secretFor(from source) func(ctx context.Context, url string) (Secret, error) {
	return func(ctx context.Context, url string) (Secret, error) {
		if !mayHaveSecret(url) {
			return Secret{}, nil
		}
		secret, err := h.Credentials.Resolve(ctx, from.credential, url)
		if events.ClassOf(err) == events.ClassConfig && events.DispositionOf(err) == events.Permanent {
			return Secret{}, nil // not among its URL prefixes
		}
		return secret, err
	}
}

// mayHaveSecret returns false for URLs that no credential is sent to, such as one with "..;", which could escape a prefix.
func mayHaveSecret(url string) bool {
	place, _, _ := strings.Cut(url, "?")
	return events.CheckRemote(place) == nil
}
