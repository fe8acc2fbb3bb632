package volume

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/wire"
)

// SyncRequest is a request to bring one ref of a repository up to date.
type SyncRequest struct {
	Repo  events.RepoPath
	URL   string       // the remote, http, https or ssh, without credentials in it
	Ref   events.Ref   // zero for the remote's default branch
	Pin   string       // commit to publish for Ref, whatever Ref points to; optional. A Ref that is a commit is its own
	Auth  wire.Auth    // used only for this operation; zero is anonymous
	Fence uint64       // fence of the lease on Repo; above zero
	Depth events.Depth // minimum history; existing history is never cut

	// Foreign marks the URL as untrusted, because it comes from a webhook's payload.
	Foreign bool

	// Base returns where to list changed files from. It is called once the ref is resolved; published is what is
	// published for it. Defaults to the published commit.
	Base func(ref events.Ref, published Publication) Base

	// Check returns the check of a ref's commit, or nil if it needs none. It is called once the ref is
	// resolved; the commit is "" if the remote names only a tag of it. isPlain is as Default of [Candidate]. Optional.
	Check func(tip Tip, isPlain bool) Check

	// Known is the remote's last known tip of the ref, or the pinned commit if the credential is known to
	// read it; optional. If that commit is published and complete, Sync does not contact the remote.
	Known Tip

	// Refetch fetches everything again, because [Volume.Views] misses objects that Sync does not need.
	Refetch bool

	// Confirm returns nil if the lease is still held. It is called right before the new tree is published and should be
	// fast. Optional.
	Confirm func(context.Context) error

	// LFS selects the files in Git LFS whose content the tree has. All others stay pointers.
	LFS lfs.Selection

	// Submodules says whether the tree has the files of its submodules.
	Submodules events.Submodules

	// Submodule returns how to fetch a submodule from a URL. It must be safe for concurrent use. It defaults
	// to AuthFor and Limiter.
	Submodule func(ctx context.Context, url string) (PartRemote, error)

	// AuthFor returns the credential for another URL that belongs to the repository, such as that of its LFS
	// server; zero if the credential may not be sent there. It defaults to none for any URL.
	AuthFor func(ctx context.Context, url string) (wire.Auth, error)

	// Limiter limits the requests to the remote; optional. Its errors are returned as they are, and end the operation.
	Limiter wire.Limiter

	// Progress is called when a phase begins and ends, and a few times a second in between; optional. It is called from
	// several goroutines, one at a time, and should not block.
	Progress func(events.Progress)
}

// Publication is what is published for a ref; zero for nothing.
type Publication struct {
	Commit string
	Tree   string // its name
	Former string // name of the tree that was published for the ref before; "" for none
}

// Base is what a reader of a ref has.
type Base struct {
	Commit string // to list changed files from; "" for all files

	// Uncertain says that the reader may have other commits instead, which it received later. Since is the
	// only one of them, or no commit if there may be several.
	Uncertain bool
	Since     string
}

// pinned returns the commit to publish whatever the ref points to, or "".
func (req SyncRequest) pinned() string { return cmp.Or(req.Pin, req.Ref.Commit()) }

// Tip is a ref and its commit.
type Tip struct {
	Ref    events.Ref // never zero, except in the zero Tip
	Commit string     // empty in the zero Tip
}

// SyncResult describes the published tree after a [Volume.Sync].
type SyncResult struct {
	Ref       events.Ref    // the ref, never zero
	Before    string        // base of Files; "" for none
	After     string        // the commit published
	Object    string        // what the ref names at the remote: the commit, or an annotated tag of it
	Path      string        // the published name relative to the root, as "acme/widgets@v1"
	Tree      string        // the immutable tree behind it, relative to the root
	Files     []events.File // what changed from Before to After, sorted by path
	Full      bool          // Before is no longer available, or Doubtful: Files lists the whole tree
	Truncated bool          // there are more files than Files lists
	Published bool          // whether the name changed; false if it was up to date
	Asked     bool          // whether the remote was contacted, so After is the current tip
	Forced    bool          // After is known not to descend from Before: history was rewritten
	Former    Publication   // what was published for the ref before
	Doubtful  bool          // readers may have other files than those of Before that Files would not list

	Missing []events.MissingSubmodule // the first that could not be fetched, sorted by path
}

// checkRequest refuses an incomplete request, and any request if the volume is unmounted: writes would land below its
// mount point.
func (v *Volume) checkRequest(repo events.RepoPath, fence uint64) error {
	if repo.IsZero() || fence == 0 {
		return events.Errorf(events.Permanent, events.ClassInternal, "volume: request without a repository or a fence")
	}
	return v.checkMounted()
}

func (v *Volume) checkMounted() error {
	id, err := os.ReadFile(filepath.Join(v.root, adminDir, idName))
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && strings.TrimSpace(string(id)) != v.id:
		return events.Errorf(events.Retryable, events.ClassVolume, "the volume opened at %s is gone: mount it again, "+
			"or restart this process with another volume", v.root)
	case err != nil:
		return disk.Error("check for the volume", err)
	}
	return nil
}

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

// maxMissing is the maximum number of missing submodules in a result.
const maxMissing = 100

func missingOf(parts []checkout.Part) (missing []events.MissingSubmodule) {
	for _, part := range parts[:min(len(parts), maxMissing)] {
		m := events.MissingSubmodule{Path: part.Path, Class: events.Class(part.Class), Error: part.Why}
		if !utf8.ValidString(part.Path) {
			m.Raw = base64.StdEncoding.EncodeToString([]byte(part.Path))
		}
		missing = append(missing, m)
	}
	return missing
}

// isTransient reports whether a submodule that is missing for this reason may be available at the next attempt.
func isTransient(class git.Class) bool {
	return class == git.ClassNetwork || class == git.ClassServer || class == git.ClassBusy
}

// ListRefsRequest is a request for the refs of a remote.
type ListRefsRequest struct {
	Repo events.RepoPath
	URL  string    // the remote, as in [SyncRequest]
	Auth wire.Auth // used only for this operation; zero is anonymous

	Foreign bool // as in [SyncRequest]

	Limiter wire.Limiter // as in [SyncRequest]
}

// ListRefs lists the refs of a remote, like git ls-remote. It fetches and writes nothing and needs no lease.
// A repository without commits has zero Refs. The errors are those of [Volume.Sync], including a conflict if
// the path is bound to another remote.
func (v *Volume) ListRefs(ctx context.Context, req ListRefsRequest) (Refs, error) {
	if req.Repo.IsZero() {
		return Refs{}, events.Errorf(events.Permanent, events.ClassInternal, "volume: request without a repository")
	}
	refs, err := v.listRefs(ctx, req)
	if err != nil {
		return Refs{}, fmt.Errorf("list refs of %s: %w", req.Repo, err)
	}
	return refs, nil
}

func (v *Volume) listRefs(ctx context.Context, req ListRefsRequest) (Refs, error) {
	if err := checkURL(req.URL); err != nil {
		return Refs{}, err
	}
	if _, _, err := v.checkBound(v.folder(req.Repo), req.URL); err != nil {
		return Refs{}, err
	}
	r, err := v.net.DialAndList(ctx, req.URL, req.Auth, req.Foreign, v.cfg.wireLimits(req.Limiter), "refs/heads/",
		"refs/tags/")
	if err != nil {
		return Refs{}, err
	}
	defer r.Close()
	return refsOf(r.BranchesAndTags())
}
