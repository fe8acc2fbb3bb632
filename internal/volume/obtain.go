package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
	"lockstep/internal/git/wire"
)

// obtain gets the tip's complete commit into the store and reads its plan. It fetches nothing if the store has the
// commit, else only what is new. If that does not yield a complete commit, it fetches everything once into a new store,
// in case the old one is damaged.
func (s *syncer) obtain(ctx context.Context, t *target) error {
	if s.req.Refetch {
		parts, err := checkout.GitDirOf(s.f.tree(t.now.tree)).Parts()
		if err != nil {
			return disk.Error("read the submodules of a tree", err)
		}
		return s.obtainAfresh(ctx, t, parts)
	}
	old, err := s.f.currentStore(s.binding.MovedAway)
	if err != nil {
		return err
	}
	refs, err := old.refs()
	if err != nil {
		return err
	}
	haves := distinct(refs, t.Ref.String(), s.binding.Default.String())
	switch {
	case !t.Commit.IsZero() && slices.Contains(haves, t.Commit) && s.isDeepEnough(t) && s.hasTag(t, old):
		err = s.open(ctx, t, old)
	case old.needsRefetch():
		if err = s.tryRefetch(ctx, t, old); err == nil || events.DispositionOf(err) == events.Contention {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return s.fetch(ctx, t, old, haves)
	default:
		err = s.fetch(ctx, t, old, haves)
	}
	if len(haves) == 0 || !worthRefetching(ctx, err) {
		return err
	}
	again := s.refetch(ctx, t)
	if events.ClassOf(again) == events.ClassNetwork { // the connection may have failed because of what was sent before
		return fmt.Errorf("%w; fetching everything instead: %w", err, again)
	}
	return again
}

// obtainAfresh fetches everything into a new store, and discards those of submodules.
func (s *syncer) obtainAfresh(ctx context.Context, t *target, parts checkout.Parts) error {
	if err := s.dropParts(ctx, parts); err != nil {
		return err
	}
	return s.refetch(ctx, t)
}

func (s *syncer) refetch(ctx context.Context, t *target) error {
	next, err := s.f.nextStore(s.binding.MovedAway)
	if err != nil {
		return err
	}
	s.refetched = true
	return s.fetch(ctx, t, next, nil)
}

// tryRefetch fetches everything into the next store, because this one has grown too large. If that fails, for example
// because of a size limit, the old store stays in use. The next sync tries again only after contention.
func (s *syncer) tryRefetch(ctx context.Context, t *target, old store) error {
	err := s.refetch(ctx, t)
	if err != nil {
		s.refetched = false
	}
	if err != nil && events.DispositionOf(err) != events.Contention {
		_ = os.Remove(filepath.Join(old.dir, refetchMark))
	}
	return err
}

// distinct returns the commits of refs in a fixed order without duplicates. The refs in first come first, because only
// the first few are sent to the remote.
func distinct(refs map[string]object.ID, first ...string) []object.ID {
	commits := slices.SortedFunc(maps.Values(refs), object.ID.Compare)
	commits = slices.Compact(commits)
	for _, ref := range slices.Backward(first) {
		if i := slices.Index(commits, refs[ref]); i > 0 {
			commits = slices.Insert(slices.Delete(commits, i, i+1), 0, refs[ref])
		}
	}
	return commits
}

// worthRefetching reports whether a full fetch may succeed where this one failed: only if the pack does not
// apply. After an error of the server it would fail too, and add load.
func worthRefetching(ctx context.Context, err error) bool {
	return events.ClassOf(err) == events.ClassCorrupt && ctx.Err() == nil && !errors.Is(err, ErrStale)
}

// open reads the plan of a commit that is in the store.
func (s *syncer) open(ctx context.Context, t *target, from store) (err error) {
	if err := s.takeSlot(ctx); err != nil {
		return err
	}
	s.progress.begin(events.PhaseCompare, "", 0)
	s.use(from)
	s.plan, err = s.newPlan(ctx, s.objects, t.Commit, s.lastTree(t))
	if err != nil {
		return err
	}
	return s.hold(ctx, from, s.objects, from.shallow(), from.depth())
}

// manyFiles is how many files are read at any time: they take about 20 MiB.
const manyFiles = 100_000

// newPlan returns [checkout.NewPlan]. More files than that are read in turn, by one sync at a time in a process, so that
// trees that a few hundred bytes describe do not take all memory together. A push to a large tree reads what differs.
func (s *syncer) newPlan(
	ctx context.Context, objects *object.Store, h object.ID, last *checkout.Tree,
) (*checkout.Plan, error) {
	most := s.v.cfg.MaxTreeFiles
	if !s.slot.large {
		plan, err := checkout.NewSmallPlan(ctx, objects, h, last, most, manyFiles)
		if most <= manyFiles || events.ClassOf(err) != events.ClassQuota {
			return plan, err
		}
		if err := s.slot.grow(ctx, s.progress); err != nil {
			return nil, err
		}
		s.progress.begin(events.PhaseCompare, "", 0)
	}
	return checkout.NewPlan(ctx, objects, h, last, most)
}

// fetch fetches the tip into quarantine, checks that it is complete, and moves it into a store.
func (s *syncer) fetch(ctx context.Context, t *target, into store, haves []object.ID) error {
	if s.remote == nil { // not contacted yet
		listed, err := s.list(ctx)
		if err != nil {
			return err
		}
		*t = *listed
	}
	if into.hasOtherFormat(t.Want) { // the remote's repository was created again with another object format
		var err error
		if into, err = s.f.nextStore(s.binding.MovedAway); err != nil {
			return err
		}
		haves, s.refetched = nil, true
	}
	format := t.Want.Format()
	if err := s.f.guarded(ctx, s.fence, func() error {
		return disk.Error("create the store", object.MakeBare(into.dir, format))
	}); err != nil {
		return err
	}
	s.progress.begin(events.PhaseFetch, "bytes", 0)
	if last := s.lastTree(t); last != nil {
		s.preload.Go(last.Preload)
	}
	s.slot.leave()
	got, err := s.receive(ctx, t, into, haves)
	if err != nil {
		return err
	}
	s.slot.began = true
	if err := s.takeSlot(ctx); err != nil {
		return err
	}
	if err := s.unpack(ctx, &got.q, into, len(haves) > 0); err != nil {
		return err
	}
	if err := s.planFetched(ctx, t, got.q, into); err != nil {
		return err
	}
	s.v.done("fetched")
	return s.release(ctx, got, into, len(haves) == 0)
}

// unpack writes the objects of a pack in quarantine to disk. An incremental pack may have deltas on objects
// of the store.
func (s *syncer) unpack(ctx context.Context, q *object.Quarantine, into store, incremental bool) error {
	progress := object.Progress{
		Begin: func(objects int64) { s.progress.begin(events.PhaseFetch, "objects", objects) },
		Count: s.progress.count,
	}
	if incremental {
		return q.Unpack(ctx, into.dir, s.v.cfg.packLimits(), progress)
	}
	s.kept.Drop()
	s.kept = object.NewKept()
	q.Kept = s.kept
	return q.Index(ctx, s.v.cfg.packLimits(), progress)
}

// planFetched plans the tree of the fetched tip.
func (s *syncer) planFetched(ctx context.Context, t *target, q object.Quarantine, into store) (err error) {
	s.progress.begin(events.PhaseCompare, "", 0)
	both := object.Open(q.Dir, into.dir)
	s.plan, err = s.newPlan(ctx, both, t.Want, s.lastTree(t))
	both.Close()
	if err != nil {
		return err
	}
	if s.plan.Commit == t.Commit {
		return nil
	}
	if s.req.pinned() != "" {
		return events.Errorf(events.Permanent, events.ClassNoRef, "%s is a tag; use the hash of its commit, %s",
			t.Commit, s.plan.Commit)
	}
	t.Commit = s.plan.Commit // the remote did not peel the tag, or not to its commit: the check is that of another
	s.setCheck(t)
	return nil
}

// release moves fetched objects from quarantine into a store, which may be new if everything was fetched.
func (s *syncer) release(ctx context.Context, got received, into store, everything bool) error {
	if err := s.checkFetched(ctx, got.q.Dir); err != nil {
		return err
	}
	if everything {
		if err := s.v.flushStore(into); err != nil {
			return err
		}
	}
	if err := got.q.Release(into.dir); err != nil {
		return err
	}
	s.use(into)
	s.objects.Keep(got.q.Kept)
	if err := s.hold(ctx, into, s.objects, got.shallow, events.Depth(got.want.Depth)); err != nil {
		return err
	}
	s.v.done("moved")
	return nil
}

// received is a pack in quarantine.
type received struct {
	q       object.Quarantine
	want    wire.FetchRequest
	shallow []object.ID
}

// receive fetches the tip's pack.
func (s *syncer) receive(ctx context.Context, t *target, into store, haves []object.ID) (received, error) {
	got := received{want: s.wanted(t, into, haves)}
	var err error
	if got.q, err = object.OpenQuarantine(s.f.quarantine(s.fence)); err != nil {
		return got, err
	}
	got.q.Format = t.Want.Format()
	got.shallow, err = s.download(ctx, s.remote, got.want, got.q)
	return got, err
}

// wanted returns the request for the tip.
func (s *syncer) wanted(t *target, into store, haves []object.ID) wire.FetchRequest {
	want := wire.FetchRequest{
		Tip: t.Want, ByHash: t.ByHash, Depth: git.Depth(deeper(into.depth(), s.req.Depth)), Haves: haves,
	}
	if len(haves) > 0 {
		want.Shallow = into.shallow()
	} else if current, err := s.f.currentStore(s.binding.MovedAway); err == nil {
		want.Depth = git.Depth(deeper(current.depth(), events.Depth(want.Depth)))
	}
	return want
}

// download writes a remote's pack to the quarantine.
func (s *syncer) download(
	ctx context.Context, remote *wire.Session, want wire.FetchRequest, q object.Quarantine,
) (shallow []object.ID, err error) {
	file, err := q.CreatePack()
	if err == nil {
		shallow, err = remote.Fetch(ctx, want, countingWriter{file, s.progress})
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}
	if err != nil {
		return nil, fmt.Errorf("fetch %.12s: %w", want.Tip, err)
	}
	return shallow, nil
}

// close releases what the sync has open.
func (s *syncer) close() {
	s.preload.Wait()
	s.builder.close()
	s.kept.Drop()
	if s.remote != nil {
		s.remote.Close()
	}
}

// lastTree opens the tree to share files with: the one published for this ref, or its prepared copy, else the default
// branch's, else nil.
func (s *syncer) lastTree(t *target) *checkout.Tree {
	for _, name := range []string{t.names[0], s.binding.Repo.String()} {
		now := s.v.current(s.f, s.binding, name)
		if s.last != nil || now.tree == "" {
			continue
		}
		if now == t.now && now.ref == t.Ref.String() {
			if s.last = s.openPrepared(now); s.last != nil {
				s.prepared = now.tree
				continue
			}
		}
		s.last = checkout.OpenTree(s.f.tree(now.tree), s.v.cfg.Links)
	}
	return s.last
}
