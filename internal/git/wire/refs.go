package wire

import (
	"strings"

	"lockstep/events"
	"lockstep/internal/git/object"
)

// Refs holds the branches and tags of a remote whose names are valid according to [events.ParseRef].
type Refs struct {
	Default events.Ref        // the default branch, or events.DetachedHead; zero if unknown or missing
	Commits map[string]string // of branches, tags and a detached HEAD, by full name; for an annotated tag the commit, or the tag if the server does not peel tags
}

// Has reports whether the remote listed a ref.
func (r *Session) Has(ref events.Ref) bool {
	if r.refs == nil {
		return false
	}
	_, ok := r.refs.References[ref.String()]
	return ok || ref == events.DetachedHead && r.defaultBranch() == ref.String()
}

// ListsAny reports whether any listed ref points to one of the commits.
func (r *Session) ListsAny(commits map[object.ID]bool) bool {
	if r.refs == nil {
		return false
	}
	if r.refs.Head != nil && commits[*r.refs.Head] {
		return true
	}
	for name, hash := range r.refs.References {
		if commits[hash] || commits[r.refs.Peeled[name]] {
			return true
		}
	}
	return false
}

// BranchesAndTags returns the listed branches and tags.
func (r *Session) BranchesAndTags() Refs {
	if r.refs == nil {
		return Refs{}
	}
	refs := Refs{Commits: make(map[string]string, len(r.refs.References))}
	for name, hash := range r.refs.References {
		if !strings.HasPrefix(name, "refs/heads/") && !strings.HasPrefix(name, "refs/tags/") {
			continue
		}
		if ref, err := events.ParseRef(name); err != nil || ref.String() != name {
			continue
		}
		if peeled, ok := r.refs.Peeled[name]; ok {
			hash = peeled
		}
		refs.Commits[name] = hash.String()
	}
	name := r.defaultBranch()
	if name == events.DetachedHead.String() {
		refs.Commits[name] = r.refs.Head.String()
	}
	if refs.Commits[name] != "" {
		refs.Default, _ = events.ParseRef(name) // parsed above
	}
	return refs
}
