package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/object"
	"lockstep/internal/git/wire"
)

// SyncRequest is a request to bring one ref of a repository up to date.
type SyncRequest struct {
	Repo  events.RepoPath
	URL   string       // the remote, http, https or ssh, without credentials in it
	Ref   events.Ref   // zero for the remote's default branch
	Pin   string       // commit to publish for Ref, whatever Ref points to; optional. A Ref that is a commit is its own
	Via   string       // where to fetch from instead of URL, as long as the path is bound to URL: a reader that has a copy; optional
	Auth  wire.Auth    // used only for this operation, with Via if that is set; zero is anonymous
	Fence uint64       // fence of the lease on Repo; above zero
	Depth events.Depth // minimum history; existing history is never cut

	// Foreign marks the URL as untrusted, because it comes from a webhook's payload.
	Foreign bool

	// Base returns the commit to list changed files from, or "" for all files. It is called once the ref is resolved;
	// published is the commit published for it, or "". Defaults to the published commit.
	Base func(ref events.Ref, published string) string

	// Check returns the check of a ref's commit, or nil if it needs none. It is called once the ref is resolved; the commit is ""
	// if the remote names only a tag of it. Optional.
	Check func(tip Tip, isDefault bool) Check

	// Known is the remote's last known tip of the ref, or the pinned commit if the credential is known to read it; optional.
	// If that commit is published and complete, Sync does not contact the remote.
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

	// Submodule returns how to fetch a submodule from a URL. It must be safe for concurrent use. It defaults to AuthFor and Gate.
	Submodule func(ctx context.Context, url string) (PartRemote, error)

	// AuthFor returns the credential for another URL that belongs to the repository, such as that of its LFS server; zero if the
	// credential may not be sent there. It defaults to none for any URL.
	AuthFor func(ctx context.Context, url string) (wire.Auth, error)

	// Gate limits the requests to the remote; optional. Its errors are returned as they are, and end the operation.
	Gate wire.Gate

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

// Sync fetches one ref and publishes its tree. It returns once readers see the new tree, or an error if they still see
// the old one; package events derives from the error whether to retry. If ctx is cancelled, Sync returns its cause soon.
//
// The caller holds the lease on req.Repo with the fence req.Fence. Only one Sync or Remove may run per repository and
// fence; of two with different fences, the lower fails with [ErrStale] and changes nothing that readers see.
func (v *Volume) Sync(ctx context.Context, req SyncRequest) (SyncResult, error) {
	s := v.newSyncer(v.folder(req.Repo), req)
	defer s.slot.leave()
	if err := v.checkRequest(req.Repo, req.Fence); err != nil {
		return SyncResult{}, err
	}
	defer v.janitor.syncBegins()()
	res, err := s.run(ctx)
	s.progress.end()
	res.Asked = s.remote != nil
	s.noteGrowth(res)
	s.close()
	_ = os.RemoveAll(s.f.quarantine(s.req.Fence)) // otherwise the next holder removes it
	v.janitor.add(s.f)
	if err != nil {
		s.discard()
		return SyncResult{}, fmt.Errorf("sync %s: %w", req.Repo, s.f.explain(ctx, req.Fence, err))
	}
	if v.cfg.Replaced != nil && res.Published && s.now.ref == res.Ref.String() {
		v.cfg.Replaced(PrepareRequest{Repo: req.Repo, Ref: res.Ref, Tree: res.Tree})
	}
	return res, nil
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
		return events.Errorf(events.Retryable, events.ClassVolume, "the volume opened at %s is gone: mount it again, or restart this process with another volume", v.root)
	case err != nil:
		return disk.Error("check for the volume", err)
	}
	return nil
}

// syncer is the state of one Sync.
type syncer struct {
	holder
	req  SyncRequest
	slot slot // taken before local work, left before the remote's answer is awaited

	remote   *wire.Session
	tip      tip
	names    []string // to publish under
	check    Check    // of the tip; nil for none
	now      current  // published under the first name at the start
	replaced []string // trees that the names linked to before the flip

	store      store         // where the commit's objects are
	objects    *object.Store // open on it
	kept       *object.Kept  // blobs of a first fetch
	refetched  bool          // everything has been fetched again
	plan       *checkout.Plan
	history    checkout.History // of the plan's commit
	last       *checkout.Tree   // see lastTree
	preload    sync.WaitGroup   // reads last while the remote is asked
	prepared   string           // last is the tree prepared from this published one; "" for none
	tree       string           // name of the tree built, until it is published
	large      *largeFiles      // LFS files of the plan's tree; nil for none
	parts      checkout.Parts   // submodules of the plan's tree; see obtainParts
	partDirs   []string         // their stores, and those of the last tree
	collected  bool             // parts is set
	reading    sync.Mutex       // held while the commit of a submodule is checked, as that takes memory
	partNumber atomic.Int64     // of the last submodule fetched
	damaged    bool             // see wasDamaged; of the base, once compared

	largeObjects *object.Store // the store, opened again for large
	meter        meter
	progress     *reporter
}

func (v *Volume) newSyncer(f folder, req SyncRequest) *syncer {
	return &syncer{holder: holder{v: v, f: f, fence: req.Fence}, req: req, slot: slot{slots: v.cfg.Slots}, progress: newReporter(req.Progress)}
}

// takeSlot takes the slot for local work, unless the sync has it.
func (s *syncer) takeSlot(ctx context.Context) error { return s.slot.take(ctx, s.progress) }

func (s *syncer) run(ctx context.Context) (res SyncResult, err error) {
	if err := s.f.recordUnsynced(ctx, s.req.Fence); err != nil {
		return SyncResult{}, err
	}
	s.v.done("fenced")
	for _, url := range []string{s.req.URL, s.req.from()} {
		if err := checkURL(url); err != nil {
			return SyncResult{}, err
		}
	}
	if s.binding, err = s.v.bind(ctx, s.f, s.req.Repo, s.req.URL, s.req.Fence); err != nil {
		return SyncResult{}, err
	}
	if err := s.tidy(ctx); err != nil { // left behind by crashed holders
		return SyncResult{}, err
	}
	s.v.done("bound")
	if s.req.Refetch || !s.isKnownUpToDate() {
		if err := s.list(ctx); err != nil {
			return SyncResult{}, err
		}
	}
	if commit := s.now.commit; s.check == nil && !s.req.Refetch && s.isPublished(s.tip.Commit) && commit == s.base() && !s.wasDamaged(commit) {
		tree := s.v.relative(s.f.tree(s.now.tree))
		return SyncResult{Ref: s.tip.Ref, Path: s.names[0], Before: commit, After: commit, Tree: tree}, s.f.guarded(ctx, s.req.Fence, s.recordDefault)
	}
	if err := s.checkSpace(ctx); err != nil {
		return SyncResult{}, err
	}
	if err := s.obtain(ctx); err != nil {
		return SyncResult{}, err
	}
	// obtain may have contacted the remote after all, so the tip is final only now.
	if err := s.checkCommit(ctx); err != nil {
		return SyncResult{}, err
	}
	if err := s.obtainParts(ctx); err != nil {
		if err := s.obtainAgain(ctx, err); err != nil {
			return SyncResult{}, err
		}
	}
	res = SyncResult{Ref: s.tip.Ref, Path: s.names[0], Before: s.base()}
	defer func() { res.Missing = s.parts.Missing() }()
	changed, err := s.changesSince(ctx, res.Before)
	if err != nil {
		if err = s.obtainAgain(ctx, err); err == nil {
			changed, err = s.changesSince(ctx, res.Before)
		}
	}
	if err != nil {
		return SyncResult{}, err
	}
	res.After = s.plan.Commit.String()
	res.Files, res.Full, res.Truncated = filesOf(changed.Files), changed.Full, changed.Truncated
	res.Damaged = s.damaged
	res.Forced = s.isForced(ctx, res.Before)
	if s.isPublished(s.plan.Commit) {
		res.Tree = s.v.relative(s.f.tree(s.now.tree))
		return res, s.f.guarded(ctx, s.req.Fence, s.recordDefault)
	}
	res.Tree, res.Published, err = s.publish(ctx)
	if err == nil && s.store.needsPrune(s.tidied) {
		_ = s.prune(ctx) // non-critical: the next sync prunes again
	}
	return res, err
}

// isKnownUpToDate reports whether the last known tip is already published.
func (s *syncer) isKnownUpToDate() bool {
	if s.req.Known.Commit == "" {
		return false
	}
	commit := object.ParseID(s.req.Known.Commit)
	s.tip = tip{wire.Tip{Ref: s.req.Known.Ref.String(), IsDefault: s.req.Known.Ref == s.binding.Default, Want: commit, Commit: commit}, s.req.Known.Ref}
	s.names = s.v.names(s.f, s.binding, s.tip)
	s.now = s.v.current(s.f, s.binding, s.names[0])
	s.setCheck()
	return s.isPublished(s.tip.Commit) && !s.needsTag() // which tag it was is not known
}

// list resolves the ref at the remote and reads what is published for it.
func (s *syncer) list(ctx context.Context) (err error) {
	s.slot.leave()
	s.progress.begin(events.PhaseList, "", 0)
	if s.remote, err = s.v.net.Dial(s.req.from(), s.req.Auth, s.req.Foreign, s.v.cfg.wireLimits(s.req.Gate)); err != nil {
		return err
	}
	if err := s.remote.List(ctx, cmp.Or(s.req.Ref.String(), "HEAD")); err != nil {
		return err
	}
	if pinned := s.req.pinned(); pinned != "" {
		s.tip, err = parseTip(s.remote.ResolveCommit(s.req.Ref.String(), object.ParseID(pinned)))
	} else {
		s.tip, err = parseTip(s.remote.Resolve(s.req.Ref.String()))
	}
	if err != nil {
		return err
	}
	s.remote.ForgetRefs()
	s.names = s.v.names(s.f, s.binding, s.tip)
	if err := s.checkNames(); err != nil { // fail before fetching and building
		return err
	}
	s.now = s.v.current(s.f, s.binding, s.names[0])
	s.setCheck()
	s.v.done("listed")
	return nil
}

// base returns the commit to list changed files from.
func (s *syncer) base() string {
	published := ""
	if s.now.ref == s.tip.Ref.String() {
		published = s.now.commit
	}
	if s.req.Base == nil {
		return published
	}
	return s.req.Base(s.tip.Ref, published)
}

// changesSince lists the changes since the commit base, which may be in an older store generation.
func (s *syncer) changesSince(ctx context.Context, base string) (checkout.Changes, error) {
	if err := s.takeSlot(ctx); err != nil {
		return checkout.Changes{}, err
	}
	s.progress.begin(events.PhaseCompare, "", 0)
	generations, err := s.f.generations()
	if err != nil {
		return checkout.Changes{}, err
	}
	dirs := []string{s.store.dir}
	for _, n := range slices.Backward(generations) {
		if older := s.f.generation(n); older != s.store {
			dirs = append(dirs, older.dir)
		}
	}
	all := object.Open(append(dirs, s.partDirs...)...)
	defer all.Close()
	if s.damaged = s.wasDamaged(base); !s.damaged {
		return s.plan.ChangesSince(ctx, all, base, s.v.cfg.checkoutLimits())
	}
	changes, err := s.plan.ChangesSince(ctx, all, "", s.v.cfg.checkoutLimits())
	changes.Full = true
	return changes, err
}

// wasDamaged reports whether a tree of the ref at this commit is marked as damaged, so that readers may have read wrong files. It
// is unknown which apps were notified, so all are notified until that tree's grace has ended.
func (s *syncer) wasDamaged(commit string) bool {
	if !object.IsID(commit) {
		return false
	}
	if _, err := os.Lstat(s.f.damaged()); err != nil {
		return false
	}
	trees, err := disk.ReadDir(s.f.trees())
	if err != nil {
		return false
	}
	return slices.ContainsFunc(trees, func(tree os.DirEntry) bool {
		if _, rest, _ := strings.Cut(tree.Name(), "-"); !strings.HasPrefix(rest, commit[:12]) {
			return false
		}
		g := checkout.GitDirOf(s.f.tree(tree.Name()))
		ref, err := builtFor(g)
		return err == nil && ref == s.tip.Ref && g.IsMarked()
	})
}

// isPublished reports whether one tree of the ref's commit, with the requested history, LFS files and submodules, is published under
// every name. It returns false for the zero commit, and for a tree that a purge replaces.
func (s *syncer) isPublished(commit object.ID) bool {
	if s.now.tree == "" || s.now.ref != s.tip.Ref.String() || s.now.commit != commit.String() || !s.isDeepEnough() ||
		checkout.GitDirOf(s.f.tree(s.now.tree)).Large() != s.req.LFS.String() || !s.hasParts(s.f.tree(s.now.tree)) || s.f.isPurged(s.now.tree) {
		return false
	}
	for _, name := range s.names {
		if s.v.linkedTree(s.f, s.v.publishedPath(name)) != s.now.tree {
			return false
		}
	}
	return true
}

// isDeepEnough reports whether the published tree has the requested history.
func (s *syncer) isDeepEnough() bool {
	return events.Depth(1).Covers(s.req.Depth) || depthOf(checkout.GitDirOf(s.f.tree(s.now.tree))).Covers(s.req.Depth)
}

// current is the complete tree that a name is published for; zero if there is none.
type current struct{ tree, ref, commit string }

// current ignores the trees of a repository that has moved away.
func (v *Volume) current(f folder, b binding, name string) current {
	tree := v.linkedTree(f, v.publishedPath(name))
	if tree == "" || b.MovedAway.covers(tree) {
		return current{}
	}
	ref, commit, ok := checkout.RefAndCommit(f.tree(tree))
	if !ok {
		return current{}
	}
	return current{tree, ref, commit}
}

// relative returns a path on the volume relative to its root.
func (v *Volume) relative(path string) string {
	rel, err := filepath.Rel(v.root, path)
	if err != nil {
		return path // impossible: both are absolute
	}
	return filepath.ToSlash(rel)
}

// explain returns the root cause of a failure: a cancelled context, a newer holder that deleted our work, or err itself.
func (f folder) explain(ctx context.Context, fence uint64, err error) error {
	cause := context.Cause(ctx)
	switch {
	case cause != nil && (!errors.Is(err, cause) || events.ClassOf(err) != events.ClassOf(cause)):
		return cause // err is only its consequence
	case cause != nil || errors.Is(err, ErrStale):
		return err
	}
	switch events.ClassOf(err) {
	case events.ClassVolume, events.ClassCorrupt:
		if stale := f.checkFence(fence); errors.Is(stale, ErrStale) {
			return stale
		}
	}
	return err
}
