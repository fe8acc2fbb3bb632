package handlers

import (
	"context"
	"slices"
	"strings"

	"lockstep/events"
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

// lfsOf returns what the watches of a ref select.
func lfsOf(watches []Watch, ref events.Ref, isDefault bool) (wanted LFS) {
	for _, w := range watches {
		if w.LFS != nil && (w.Ref.Matches(ref) || isDefault && w.Ref.IsDefault()) {
			wanted = append(wanted, *w.LFS)
		}
	}
	return wanted
}

// wantedLFS returns what the watches of a change's ref select.
func (h *Handlers) wantedLFS(change events.Change, watches []Watch) (LFS, error) {
	if !slices.ContainsFunc(watches, func(w Watch) bool { return w.LFS != nil }) {
		return nil, nil
	}
	ref := change.Ref
	published, _, err := h.Repos.Published(change.Repo)
	if err != nil {
		return nil, err
	}
	if ref.IsZero() {
		ref = published.Plain
	}
	return lfsOf(watches, ref, change.Ref.IsZero() || change.Ref == published.Plain), nil
}

// secretFor returns [Remote.SecretFor] for the credential of a source.
func (h *Handlers) secretFor(from source) func(ctx context.Context, url string) (Secret, error) {
	return func(ctx context.Context, url string) (Secret, error) {
		place, _, _ := strings.Cut(url, "?")
		if events.CheckRemote(place) != nil { // such as one with "..;", which could escape a prefix
			return Secret{}, nil
		}
		secret, err := h.Credentials.Resolve(ctx, from.credential, url)
		if events.ClassOf(err) == events.ClassConfig && events.DispositionOf(err) == events.Permanent {
			return Secret{}, nil // not among its URL prefixes
		}
		return secret, err
	}
}
