package wire

import (
	"strings"

	"lockstep/internal/git/object"

	"lockstep/events"
)

// Refs is what a remote lists. Only branches and tags are in it, and of those none whose name [events.ParseRef]
// refuses.
type Refs struct {
	Default events.Ref        // the default branch; zero when the remote does not say, or has no such branch
	Commits map[string]string // by full name. Of an annotated tag it is the commit; of servers that do not tell that, the tag itself
}

// Has reports whether the remote has listed a ref.
func (r *Session) Has(ref events.Ref) bool {
	if r.refs == nil {
		return false
	}
	_, ok := r.refs.References[ref.String()]
	return ok
}

// ListsAny reports whether a ref stands at one of the commits.
func (r *Session) ListsAny(commits map[object.ID]bool) bool {
	if r.refs == nil {
		return false
	}
	for name, hash := range r.refs.References {
		if commits[hash] || commits[r.refs.Peeled[name]] {
			return true
		}
	}
	return false
}

// BranchesAndTags returns the branches and tags listed.
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
	if name := r.defaultBranch(); refs.Commits[name] != "" {
		refs.Default, _ = events.ParseRef(name) // it has been parsed above
	}
	return refs
}
