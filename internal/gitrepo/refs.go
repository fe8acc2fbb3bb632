package gitrepo

import (
	"strings"

	"github.com/go-git/go-git/v5/plumbing"

	"lockstep/events"
)

// Refs is what a remote lists. Only branches and tags are in it, and of those none whose name [events.ParseRef]
// refuses.
type Refs struct {
	Default events.Ref        // the default branch; zero when the remote does not say, or has no such branch
	Commits map[string]string // by full name. Of an annotated tag it is the commit; of servers that do not tell that, the tag itself
}

// has reports whether the remote has listed a ref.
func (r *remote) has(ref events.Ref) bool {
	if r.refs == nil {
		return false
	}
	_, ok := r.refs.References[ref.String()]
	return ok
}

// listsAny reports whether a ref stands at one of the commits.
func (r *remote) listsAny(commits map[plumbing.Hash]bool) bool {
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

// branchesAndTags returns the branches and tags listed.
func (r *remote) branchesAndTags() Refs {
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
