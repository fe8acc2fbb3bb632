package volume

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/wire"
)

// SyncRequest is a request to bring one ref of a repository up to date.
type SyncRequest struct {
	Repo events.RepoPath
	URL  string     // the remote, http, https or ssh, without credentials in it
	Ref  events.Ref // zero for the remote's default branch
	Pin  string     // commit to publish for Ref, whatever Ref points to; optional. A Ref that is a commit is its own
	// where to fetch from instead of URL, as long as the path is bound to URL: a reader that has a copy; optional
	Via   string
	Auth  wire.Auth    // used only for this operation, with Via if that is set; zero is anonymous
	Fence uint64       // fence of the lease on Repo; above zero
	Depth events.Depth // minimum history; existing history is never cut

	// Foreign marks the URL as untrusted, because it comes from a webhook's payload.
	Foreign bool

	// Base returns the commit to list changed files from, or "" for all files. It is called once the ref is resolved;
	// published is the commit published for it, or "". Defaults to the published commit.
	Base func(ref events.Ref, published string) string

	// Check returns the check of a ref's commit, or nil if it needs none. It is called once the ref is
	// resolved; the commit is "" if the remote names only a tag of it. Optional.
	Check func(tip Tip, isDefault bool) Check

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

// pinned returns the commit to publish whatever the ref points to, or "".
func (req SyncRequest) pinned() string { return cmp.Or(req.Pin, req.Ref.Commit()) }

// from returns the URL to fetch from.
func (req SyncRequest) from() string { return cmp.Or(req.Via, req.URL) }

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
	Path      string        // the published name relative to the root, as "acme/widgets@v1"
	Tree      string        // the immutable tree behind it, relative to the root
	Files     []events.File // what changed from Before to After, sorted by path
	Full      bool          // Before is no longer available, or a tree of it was damaged: Files lists the whole tree
	Truncated bool          // there are more files than Files lists
	Published bool          // whether the name changed; false if it was up to date
	Asked     bool          // whether the remote was contacted, so After is the current tip
	Forced    bool          // After is known not to descend from Before: history was rewritten
	Damaged   bool          // a tree of Before was damaged, so its readers may have read wrong files

	Missing []checkout.Part // submodules that could not be fetched, sorted by path
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
