package wire

import (
	"slices"
	"strings"

	"lockstep/internal/git/object"
)

// advertisement has the refs and capabilities that a server lists.
type advertisement struct {
	format       object.Format
	head         object.ID            // of HEAD; zero if it is not listed
	refs         map[string]object.ID // by full name
	peeled       map[string]object.ID // the commits of annotated tags
	capabilities capabilities
}

// capabilities are the values of each capability; one without values has an empty one.
type capabilities map[string][]string

func (c capabilities) has(name string) bool { return len(c[name]) > 0 }

func newAdvertisement() *advertisement {
	return &advertisement{refs: map[string]object.ID{}, peeled: map[string]object.ID{}, capabilities: capabilities{}}
}

func (a *advertisement) isEmpty() bool { return a.head.IsZero() && len(a.refs) == 0 }

// parseID parses an ID of the server's format.
func (a *advertisement) parseID(text string) (id object.ID, ok bool) {
	return object.ParseID(text), len(text) == 2*a.format.Size() && object.IsID(text)
}

// formatOf returns the object format that a server names. One that names none has SHA-1.
func formatOf(name string) (object.Format, error) {
	for _, format := range []object.Format{object.SHA1, object.SHA256} {
		if name == format.String() {
			return format, nil
		}
	}
	return object.SHA1, errFormat
}

// Refs holds the branches and tags of a remote. Names are valid or not according to [Config.CheckRef].
type Refs struct {
	Default string // the default branch, or [DetachedHead]; "" if unknown or missing
	// of branches, tags and a detached HEAD, by full name; for an annotated tag the commit, or the tag if the
	// server does not peel tags
	Commits map[string]string
	Moved   string // URL of the repository that the server permanently redirects to, over HTTP; "" for none

	Invalid        []string // full names of branches and tags that are not valid, in no order
	InvalidDefault string   // the default branch if its name is not valid, or ""
}

// Has reports whether the remote listed a ref.
func (r *Session) Has(ref string) bool {
	if r.refs == nil {
		return false
	}
	_, ok := r.refs.refs[ref]
	return ok || ref == DetachedHead && r.defaultBranch() == ref
}

// ListsAny reports whether any listed ref points to one of the commits.
func (r *Session) ListsAny(commits map[object.ID]bool) bool {
	if r.refs == nil {
		return false
	}
	if commits[r.refs.head] {
		return true
	}
	for name, hash := range r.refs.refs {
		if commits[hash] || commits[r.refs.peeled[name]] {
			return true
		}
	}
	return false
}

// BranchesAndTags returns the listed branches and tags.
func (r *Session) BranchesAndTags() Refs {
	if r.refs == nil {
		return Refs{Moved: r.carrier.moved()}
	}
	refs := Refs{Commits: make(map[string]string, len(r.refs.refs)), Moved: r.carrier.moved()}
	for name, hash := range r.refs.refs {
		if !strings.HasPrefix(name, "refs/heads/") && !strings.HasPrefix(name, "refs/tags/") {
			continue
		}
		if r.net.checkRef(name) != nil {
			refs.Invalid = append(refs.Invalid, name)
			continue
		}
		if peeled, ok := r.refs.peeled[name]; ok {
			hash = peeled
		}
		refs.Commits[name] = hash.String()
	}
	name := r.defaultBranch()
	if name == DetachedHead {
		refs.Commits[name] = r.refs.head.String()
	}
	switch {
	case refs.Commits[name] != "":
		refs.Default = name
	case slices.Contains(refs.Invalid, name):
		refs.InvalidDefault = name
	}
	return refs
}
