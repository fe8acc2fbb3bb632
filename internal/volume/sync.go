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
	if err := v.checkRequest(req.Repo, req.Fence); err != nil {
		return SyncResult{}, err
	}
	defer v.janitor.syncBegins()()
	s := v.newSyncer(v.folder(req.Repo), req)
	defer s.slot.leave()
	res, err := s.run(ctx)
	s.progress.end()
	res.Asked = s.remote != nil
	s.noteGrowth(res)
	s.close()
	_ = os.RemoveAll(s.f.quarantine(s.fence)) // otherwise the next holder removes it
	v.janitor.add(s.f)
	if err != nil {
		_ = os.RemoveAll(s.f.build(s.fence))
		return SyncResult{}, fmt.Errorf("sync %s: %w", req.Repo, s.f.explain(ctx, req.Fence, err))
	}
	return res, nil
}

// syncer is a sync of one request. Its steps get what they work on as arguments; what they make is in its builder.
type syncer struct {
	builder
	req    SyncRequest
	remote *wire.Session // nil until it is contacted

	refetched  bool           // everything has been fetched again
	kept       *object.Kept   // blobs of a first fetch
	preload    sync.WaitGroup // reads the last tree while the remote is asked
	reading    sync.Mutex     // held while the commit of a submodule is checked, as that takes memory
	partNumber atomic.Int64   // of the last submodule fetched
}

// target is what a sync publishes, and where.
type target struct {
	tip
	names []string // to publish under
	now   current  // published under the first name at the start
	check Check    // of the commit; nil for none
}

func (v *Volume) newSyncer(f folder, req SyncRequest) *syncer {
	return &syncer{builder: v.newBuilder(f, req.Fence, req.Progress), req: req}
}

// run goes through the steps of a sync.
func (s *syncer) run(ctx context.Context) (SyncResult, error) {
	if err := s.enter(ctx); err != nil {
		return SyncResult{}, err
	}
	t := s.known()
	if t == nil {
		var err error
		if t, err = s.list(ctx); err != nil {
			return SyncResult{}, err
		}
	}
	if s.isDone(t) {
		return s.settle(ctx, t, "", SyncResult{Ref: t.Ref, Path: t.names[0], Before: t.now.commit, After: t.now.commit})
	}
	if err := s.checkSpace(ctx, t); err != nil {
		return SyncResult{}, err
	}
	if err := s.obtain(ctx, t); err != nil {
		return SyncResult{}, err
	}
	res, tree, err := s.make(ctx, t)
	if err != nil && !s.refetched && worthRefetching(ctx, err) { // the store, or that of a submodule, is damaged
		if err = s.obtainAfresh(ctx, t, s.parts); err == nil {
			res, tree, err = s.make(ctx, t)
		}
	}
	if err != nil {
		return SyncResult{}, err
	}
	return s.settle(ctx, t, tree, res)
}

// enter records the fence, binds the repository to the remote, and deletes what crashed holders have left behind.
func (s *syncer) enter(ctx context.Context) (err error) {
	if err := s.f.recordUnsynced(ctx, s.fence); err != nil {
		return err
	}
	s.v.done("fenced")
	for _, url := range []string{s.req.URL, s.req.from()} {
		if err := checkURL(url); err != nil {
			return err
		}
	}
	if s.binding, err = s.v.bind(ctx, s.f, s.req.Repo, s.req.URL, s.fence); err != nil {
		return err
	}
	if err := s.tidy(ctx); err != nil {
		return err
	}
	s.v.done("bound")
	return nil
}

// known returns the last known tip if that is published already, else nil: the remote must be asked.
func (s *syncer) known() *target {
	if s.req.Refetch || s.req.Known.Commit == "" {
		return nil
	}
	commit, ref := object.ParseID(s.req.Known.Commit), s.req.Known.Ref
	at := wire.Tip{Ref: ref.String(), IsDefault: ref == s.binding.Default, Want: commit, Commit: commit}
	t := s.aim(tip{at, ref})
	if !s.isPublished(t, commit, nil) || s.needsTag(t) { // which tag it was is not known
		return nil
	}
	return t
}

// aim returns the target for a tip of the remote.
func (s *syncer) aim(at tip) *target {
	t := &target{tip: at, names: s.v.names(s.f, s.binding, at)}
	t.now = s.v.current(s.f, s.binding, t.names[0])
	s.ref = t.Ref
	s.setCheck(t)
	return t
}

// list resolves the ref at the remote.
func (s *syncer) list(ctx context.Context) (t *target, err error) {
	s.slot.leave()
	s.progress.begin(events.PhaseList, "", 0)
	if s.remote, err = s.v.net.Dial(s.req.from(), s.req.Auth, s.req.Foreign, s.v.cfg.wireLimits(s.req.Gate)); err != nil {
		return nil, err
	}
	if err := s.remote.List(ctx, cmp.Or(s.req.Ref.String(), "HEAD")); err != nil {
		return nil, err
	}
	var at tip
	if pinned := s.req.pinned(); pinned != "" {
		at, err = parseTip(s.remote.ResolveCommit(s.req.Ref.String(), object.ParseID(pinned)))
	} else {
		at, err = parseTip(s.remote.Resolve(s.req.Ref.String()))
	}
	if err != nil {
		return nil, err
	}
	s.remote.ForgetRefs()
	t = s.aim(at)
	if err := s.checkNames(t.names); err != nil { // fail before fetching and building
		return nil, err
	}
	s.v.done("listed")
	return t, nil
}

// isDone reports whether nothing is to be done: the target is published, and the caller knows it.
func (s *syncer) isDone(t *target) bool {
	commit := t.now.commit
	return t.check == nil && !s.req.Refetch && s.isPublished(t, t.Commit, nil) && commit == s.base(t) && !s.wasDamaged(commit)
}

// base returns the commit to list changed files from.
func (s *syncer) base(t *target) string {
	published := ""
	if t.now.ref == t.Ref.String() {
		published = t.now.commit
	}
	if s.req.Base == nil {
		return published
	}
	return s.req.Base(t.Ref, published)
}

// make admits the commit that was obtained, fills its plan with submodules and LFS files, and builds its tree. It returns no tree if
// one is published already: perhaps one without submodules that cannot be had.
func (s *syncer) make(ctx context.Context, t *target) (res SyncResult, tree string, err error) {
	if err := s.admit(ctx, t); err != nil {
		return SyncResult{}, "", err
	}
	if err := s.obtainParts(ctx); err != nil {
		return SyncResult{}, "", err
	}
	res = SyncResult{Ref: t.Ref, Path: t.names[0], Before: s.base(t), After: s.plan.Commit.String()}
	changed, damaged, err := s.changesSince(ctx, res.Before)
	if err != nil {
		return SyncResult{}, "", err
	}
	res.Files, res.Full, res.Truncated, res.Damaged = filesOf(changed.Files), changed.Full, changed.Truncated, damaged
	res.Forced = s.isForced(ctx, res.Before)
	if !s.isPublished(t, s.plan.Commit, &s.parts) {
		if err := s.obtainLarge(ctx); err != nil {
			return SyncResult{}, "", err
		}
	}
	res.Missing = s.parts.Missing()
	if s.isPublished(t, s.plan.Commit, &s.parts) {
		return res, "", nil
	}
	tree, err = s.build(ctx)
	if err != nil {
		return SyncResult{}, "", err
	}
	s.v.done("built")
	return res, tree, nil
}

// settle publishes a new tree, or only records the default branch if there is none.
func (s *syncer) settle(ctx context.Context, t *target, tree string, res SyncResult) (SyncResult, error) {
	if tree == "" {
		res.Tree = s.v.relative(s.f.tree(t.now.tree))
		return res, s.f.guarded(ctx, s.fence, func() error { return s.recordDefault(t) })
	}
	replaced, err := s.flip(ctx, t, tree)
	if err != nil {
		return SyncResult{}, err
	}
	s.v.done("flipped")
	_ = s.retireReplaced(ctx, replaced) // non-critical: the next holder cleans up
	s.v.done("retired")
	if s.store.needsPrune(s.tidied) {
		_ = s.prune(ctx) // non-critical: the next sync prunes again
	}
	res.Tree, res.Published = s.v.relative(s.f.tree(tree)), true
	if s.v.cfg.Replaced != nil && t.now.ref == t.Ref.String() {
		s.v.cfg.Replaced(PrepareRequest{Repo: s.req.Repo, Ref: res.Ref, Tree: res.Tree})
	}
	return res, nil
}

// flip links every name to a new tree, once the lease is confirmed, and returns the trees that they have linked to. It deletes the
// new tree unless it may be published.
func (s *syncer) flip(ctx context.Context, t *target, tree string) (replaced []string, err error) {
	begun := false
	defer func() {
		if !begun {
			_ = os.RemoveAll(s.f.tree(tree))
		}
	}()
	if err := s.v.confirm(ctx, s.req.Confirm); err != nil {
		return nil, err
	}
	err = s.f.guarded(ctx, s.fence, func() error {
		if err := s.checkNames(t.names); err != nil {
			return err
		}
		begun = true
		for _, name := range t.names {
			old, err := s.v.readLink(s.f, s.v.publishedPath(name))
			if err != nil {
				return disk.Error("read a published name", err)
			}
			if old != "" && !slices.Contains(replaced, old) {
				replaced = append(replaced, old)
			}
			if err := s.v.flip(s.f, name, tree, s.fence); err != nil {
				return err
			}
		}
		return s.recordDefault(t)
	})
	return replaced, err
}

func (s *syncer) checkNames(names []string) error {
	for _, name := range names {
		if err := s.v.checkName(s.f, name, s.binding.Remote); err != nil {
			return err
		}
	}
	return nil
}

// recordDefault records the default branch in the binding. The caller holds the file lock.
func (s *syncer) recordDefault(t *target) error {
	if !t.IsDefault || s.binding.Default == t.Ref {
		return nil
	}
	s.binding.Default = t.Ref
	return s.f.writeBinding(s.binding)
}

// confirm returns nil if the caller still holds its leases according to check, which is optional.
func (v *Volume) confirm(ctx context.Context, check func(context.Context) error) error {
	if check != nil {
		if err := check(ctx); err != nil {
			return fmt.Errorf("confirm the lease: %w", err)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("confirm the lease: %w", context.Cause(ctx))
	}
	v.done("confirmed")
	return nil
}

// changesSince lists the changes since the commit base, which may be in an older store generation. If a tree of base was damaged,
// it lists the whole tree.
func (s *syncer) changesSince(ctx context.Context, base string) (changes checkout.Changes, damaged bool, err error) {
	if err := s.takeSlot(ctx); err != nil {
		return checkout.Changes{}, false, err
	}
	s.progress.begin(events.PhaseCompare, "", 0)
	generations, err := s.f.generations()
	if err != nil {
		return checkout.Changes{}, false, err
	}
	dirs := []string{s.store.dir}
	for _, n := range slices.Backward(generations) {
		if older := s.f.generation(n); older != s.store {
			dirs = append(dirs, older.dir)
		}
	}
	all := object.Open(append(dirs, s.partDirs...)...)
	defer all.Close()
	if damaged = s.wasDamaged(base); damaged {
		base = ""
	}
	changes, err = s.plan.ChangesSince(ctx, all, base, s.v.cfg.checkoutLimits())
	changes.Full = changes.Full || damaged
	return changes, damaged, err
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
		return err == nil && ref == s.ref && g.IsMarked()
	})
}

// isPublished reports whether one tree of the ref's commit, with the requested history, LFS files and submodules, is published under
// every name. It returns false for the zero commit, and for a tree that a purge replaces. Until the submodules are known, parts is
// nil.
func (s *syncer) isPublished(t *target, commit object.ID, parts *checkout.Parts) bool {
	if t.now.tree == "" || t.now.ref != t.Ref.String() || t.now.commit != commit.String() || !s.isDeepEnough(t) ||
		checkout.GitDirOf(s.f.tree(t.now.tree)).Large() != s.req.LFS.String() || !s.hasParts(s.f.tree(t.now.tree), parts) || s.f.isPurged(t.now.tree) {
		return false
	}
	for _, name := range t.names {
		if s.v.linkedTree(s.f, s.v.publishedPath(name)) != t.now.tree {
			return false
		}
	}
	return true
}

// isDeepEnough reports whether the published tree has the requested history.
func (s *syncer) isDeepEnough(t *target) bool {
	return events.Depth(1).Covers(s.req.Depth) || depthOf(checkout.GitDirOf(s.f.tree(t.now.tree))).Covers(s.req.Depth)
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
