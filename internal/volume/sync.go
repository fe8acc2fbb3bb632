package volume

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
	"lockstep/internal/git/wire"
)

// Sync fetches one ref and publishes its tree. It returns once readers see the new tree, or an error if they
// still see the old one; package events derives from the error whether to retry. With [ErrNoCommit], it also returns
// the ref and what it is at. If ctx is cancelled, Sync returns its cause soon.
//
// The caller holds the lease on req.Repo with the fence req.Fence. Only one Sync or Remove may run per repository and
// fence; of two with different fences, the lower fails with [ErrStale] and changes nothing that readers see.
func (v *Volume) Sync(ctx context.Context, req SyncRequest) (SyncResult, error) {
	if err := v.checkRequest(req.Repo, req.Fence); err != nil {
		return SyncResult{}, err
	}
	defer v.janitor.syncBegins()()
	s := &syncer{builder: v.newBuilder(v.folder(req.Repo), req.Fence, req.Progress), req: req}
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
		err = fmt.Errorf("sync %s: %w", req.Repo, s.f.explain(ctx, req.Fence, err))
		return SyncResult{Ref: res.Ref, After: res.After}, err
	}
	return res, nil
}

// ErrNoCommit means that a ref is at a tree or a blob.
var ErrNoCommit = object.ErrNoCommit

// syncer is a sync of one request. Its steps get what they work on as arguments; what they make is in its builder.
type syncer struct {
	builder
	req    SyncRequest
	remote *wire.Session // nil until it is contacted

	refetched bool           // everything has been fetched again
	kept      *object.Kept   // blobs of a first fetch
	preload   sync.WaitGroup // reads the last tree while the remote is asked
}

// target is what a sync publishes, and where.
type target struct {
	tip
	names []string // to publish under
	now   current  // published under the first name at the start
	was   current  // published for the ref at the start, under any name
	check Check    // of the commit; nil for none

	former Publication // was, with the tree that it replaced
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
		return s.settle(ctx, t, "", SyncResult{
			Ref: t.Ref, Path: t.names[0], Before: t.now.commit, After: t.now.commit, Former: t.former,
		})
	}
	if err := s.checkSpace(ctx, t); err != nil {
		return SyncResult{}, err
	}
	if err := s.obtain(ctx, t); err != nil {
		at := cmp.Or(commitText(t.Commit), commitText(t.Want)) // as [Volume.ListRefs] names it
		return SyncResult{Ref: t.Ref, After: at}, err
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
	if err := checkURL(s.req.URL); err != nil {
		return err
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
	for _, name := range slices.Backward(t.names) {
		if t.now = s.v.current(s.f, s.binding, name); t.now.ref == t.Ref.String() {
			t.was = t.now
		}
	}
	if t.was.tree != "" {
		t.former = Publication{t.was.commit, t.was.tree, checkout.GitDirOf(s.f.tree(t.was.tree)).Former()}
	}
	s.ref = t.Ref
	s.setCheck(t)
	return t
}

// list resolves the ref at the remote.
func (s *syncer) list(ctx context.Context) (t *target, err error) {
	s.slot.leave()
	s.progress.begin(events.PhaseList, "", 0)
	if s.remote, err = s.v.net.Dial(s.req.URL, s.req.Auth, s.req.Foreign,
		s.v.cfg.wireLimits(s.req.Limiter)); err != nil {
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
	if err := s.v.checkNames(s.f, s.binding, t.names); err != nil { // fail before fetching and building
		return nil, err
	}
	s.v.done("listed")
	return t, nil
}

// isDone reports whether nothing is to be done: the target is published, and the caller knows it.
func (s *syncer) isDone(t *target) bool {
	if t.check != nil || s.req.Refetch || !s.isPublished(t, t.Commit, nil) {
		return false
	}
	base := s.base(t)
	return t.now.commit == base.Commit && !base.Uncertain && !s.wasDamaged(t.now.commit)
}

func (s *syncer) base(t *target) Base {
	if s.req.Base == nil {
		return Base{Commit: t.was.commit}
	}
	return s.req.Base(t.Ref, t.former)
}

// make admits the commit that was obtained, fills its plan with submodules and LFS files, and builds its
// tree. It returns no tree if one is published already: perhaps one without submodules that cannot be had.
func (s *syncer) make(ctx context.Context, t *target) (res SyncResult, tree string, err error) {
	if err := s.admit(ctx, t); err != nil {
		return SyncResult{}, "", err
	}
	if err := s.obtainParts(ctx); err != nil {
		return SyncResult{}, "", err
	}
	res = SyncResult{Ref: t.Ref, Path: t.names[0], After: s.plan.Commit.String(), Former: t.former}
	if err := s.compare(ctx, t, &res); err != nil {
		return SyncResult{}, "", err
	}
	res.Forced = s.isForced(ctx, res.Before)
	if !s.isPublished(t, s.plan.Commit, &s.parts) {
		if err := s.obtainLarge(ctx); err != nil {
			return SyncResult{}, "", err
		}
	}
	res.Missing = missingOf(s.parts.Missing())
	if s.isPublished(t, s.plan.Commit, &s.parts) {
		return res, "", nil
	}
	s.former = t.was.tree
	tree, err = s.build(ctx)
	if err != nil {
		return SyncResult{}, "", err
	}
	s.v.done("built")
	return res, tree, nil
}

// compare lists the files of a result that have changed since its base.
func (s *syncer) compare(ctx context.Context, t *target, res *SyncResult) error {
	base := s.base(t)
	from := base.Commit
	if res.Doubtful = s.isDoubtful(t, base); res.Doubtful {
		from = ""
	}
	changed, err := s.changesSince(ctx, from)
	if err != nil {
		return err
	}
	res.Before, res.Files = base.Commit, filesOf(changed.Files)
	res.Full, res.Truncated = changed.Full || res.Doubtful, changed.Truncated
	return nil
}

// settle publishes a new tree, or only records the default branch if there is none.
func (s *syncer) settle(ctx context.Context, t *target, tree string, res SyncResult) (SyncResult, error) {
	res.Object = t.Want.String()
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

// flip links every name to a new tree, once the lease is confirmed, and returns the trees that they have
// linked to. It deletes the new tree unless it may be published.
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
		if err := s.v.checkNames(s.f, s.binding, t.names); err != nil {
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

// checkNames checks each of the names to publish.
func (v *Volume) checkNames(f folder, b binding, names []string) error {
	for _, name := range names {
		if err := v.checkName(f, name, b.Remote); err != nil {
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
