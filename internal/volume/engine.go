package volume

import (
	"lockstep/events"
	"lockstep/internal/git"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/wire"
)

// The Git engine knows refs and files by their names only. This file gives them the types of package events;
// the classes of errors have the same texts.

// openNetwork returns the network with the rules for URLs and refs.
func openNetwork(cfg wire.Config) (*wire.Network, error) {
	cfg.CheckURL, cfg.CheckRef = events.CheckRemote, checkRef
	return wire.NewNetwork(cfg)
}

// checkRef refuses the full name of a ref that no watch can name.
func checkRef(name string) error {
	if ref, err := events.ParseRef(name); err != nil || ref.String() != name {
		return events.ErrBadRef
	}
	return nil
}

// checkURL returns an error unless url is the URL of a Git remote over HTTP, HTTPS or SSH.
func checkURL(url string) error {
	if err := events.CheckRemote(url); err != nil {
		return events.Errorf(events.Permanent, events.ClassConfig, "remote: %w", err)
	}
	return nil
}

// tip is the remote's position of a ref.
type tip struct {
	wire.Tip
	Ref events.Ref // that of Tip, parsed
}

func parseTip(t wire.Tip, err error) (tip, error) {
	if err != nil {
		return tip{}, err
	}
	ref, err := events.ParseRef(t.Ref)
	return tip{t, ref}, err
}

// Refs holds the branches and tags of a remote.
type Refs struct {
	Default events.Ref        // the default branch, or [events.DetachedHead]; zero if unknown or missing
	Commits map[string]string // as in [wire.Refs], as the following
	Moved   string

	Invalid        []string
	InvalidDefault string
}

func refsOf(r wire.Refs) (Refs, error) {
	ref, err := events.ParseRef(r.Default)
	return Refs{ref, r.Commits, r.Moved, r.Invalid, r.InvalidDefault}, err
}

// builtFor returns the ref of a tree, even if the tree is marked as damaged.
func builtFor(g checkout.GitDir) (events.Ref, error) {
	name, err := g.BuiltFor()
	if err != nil {
		return events.Ref{}, err
	}
	return events.ParseRef(name)
}

// depthOf returns the requested depth of the history that Git sees in a tree.
func depthOf(g checkout.GitDir) events.Depth { return events.Depth(g.Depth()) }

func filesOf(listed []checkout.File) []events.File {
	if listed == nil {
		return nil
	}
	files := make([]events.File, len(listed))
	for i, f := range listed {
		files[i] = events.File{
			Path: f.Path, Raw: f.Raw, From: f.From, FromRaw: f.FromRaw, Status: events.FileStatus(f.Status), Outside: f.Outside,
		}
	}
	return files
}

// isTransient reports whether a submodule that is missing for this reason may be available at the next attempt.
func isTransient(class git.Class) bool {
	return class == git.ClassNetwork || class == git.ClassServer || class == git.ClassLimited
}
