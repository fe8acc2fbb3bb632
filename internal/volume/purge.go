package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"lockstep/events"
	"lockstep/internal/git/object"
)

// Purge deletes a commit, the replaced ones that descend from it, and what only these have, from everything that the repository
// has on the volume, without waiting for graces or unsettled results. It does nothing while a published ref has the commit. What
// readers and workspaces pin stays, and [Volume.GC] completes the purge once they are closed. Finally it reads the volume to prove
// that nothing has the deleted objects. The caller holds the lease, as for [Volume.Sync]. After a crash, the same request or GC
// completes it.
func (v *Volume) Purge(ctx context.Context, req PurgeRequest) (PurgeResult, error) {
	if err := v.checkRequest(req.Repo, req.Fence); err != nil {
		return PurgeResult{}, err
	}
	f := v.folder(req.Repo)
	if _, err := os.Lstat(f.dir); errors.Is(err, os.ErrNotExist) {
		return PurgeResult{State: PurgeAbsent}, nil // recording a fence would create the folder
	}
	record := func() error { return f.record(ctx, req.Fence) }
	if req.DryRun {
		record = func() error { return f.checkFence(req.Fence) }
	}
	err := record()
	var result PurgeResult
	if err == nil {
		result, err = v.purge(ctx, f, req)
	}
	if err != nil {
		return PurgeResult{}, fmt.Errorf("purge %.12s from %s: %w", req.Commit, req.Repo, f.explain(ctx, req.Fence, err))
	}
	return result, nil
}

// purge is the state of one Purge.
type purge struct {
	v      *Volume
	f      folder
	s      *syncer // tidies
	req    PurgeRequest
	commit object.ID

	binding  binding
	links    map[string]string // published trees by path
	trees    []string          // complete trees, published and replaced
	objects  *object.Store     // of all store generations, and of submodules
	noted    bool              // an earlier run has begun, and may have deleted the commit before what descends from it
	ancestry map[object.ID]ancestry
	affected map[string]bool      // trees that have the commit
	stale    []string             // published paths of a repository that has moved away, which have it
	parts    map[string]object.ID // commits of the submodules that are kept, by store
	doomed   map[object.ID]bool
	needed   map[object.ID]need

	result PurgeResult
}

func (v *Volume) purge(ctx context.Context, f folder, req PurgeRequest) (result PurgeResult, err error) {
	defer object.RecoverCorrupt(&err)
	p := &purge{v: v, f: f, req: req, commit: object.ParseID(req.Commit), ancestry: map[object.ID]ancestry{}, affected: map[string]bool{}}
	if p.commit.IsZero() {
		return PurgeResult{}, events.Errorf(events.Permanent, events.ClassInternal, "%q is not the full hash of a commit", req.Commit)
	}
	if p.binding, _, err = f.readBinding(); err != nil {
		return PurgeResult{}, err
	}
	if moved := p.binding.MovedAway; moved != nil {
		p.result.MovedTo = moved.To
	}
	p.s = &syncer{v: v, f: f, req: SyncRequest{Repo: req.Repo, Fence: req.Fence}, binding: p.binding}
	if p.objects, err = f.openStores(); err != nil {
		return PurgeResult{}, err
	}
	defer p.objects.Close()
	err = p.run(ctx)
	return p.result, err
}

func (p *purge) run(ctx context.Context) error {
	if err := p.checkKind(); err != nil {
		return err
	}
	var err error
	if p.noted, err = p.isNoted(); err != nil {
		return err
	}
	if err := p.survey(ctx); err != nil {
		return err
	}
	if len(p.result.Published) > 0 {
		p.result.State = PurgePublished
		return nil
	}
	found, err := p.find(ctx, p.commit)
	if err != nil {
		return err
	}
	left, err := p.replaced()
	if err != nil {
		return err
	}
	if !p.noted && len(found)+len(p.affected)+len(p.stale) == 0 && !(p.req.Replaced && left) {
		p.result.State = PurgeAbsent
		if p.result.Pins, err = p.outside(); err != nil || len(p.result.Pins) > 0 {
			p.result.State = PurgePinned
			return err
		}
		if p.req.DryRun {
			return nil
		}
		return cmp.Or(p.awaitTrash(ctx), p.forget(ctx))
	}
	if p.req.DryRun {
		return p.foresee(ctx)
	}
	before, _, err := p.v.usageNow(ctx, p.f)
	if err != nil {
		return err
	}
	if err := p.delete(ctx); err != nil {
		return err
	}
	if err := p.prove(ctx); err != nil {
		return err
	}
	p.result.State = PurgePurged
	if len(p.result.Pins) > 0 {
		p.result.State = PurgePinned
	}
	if !p.result.waits() {
		if err := p.forget(ctx); err != nil {
			return err
		}
	}
	now, err := p.v.measure(ctx, p.f)
	if err != nil {
		return err
	}
	p.result.Usage, p.result.Freed = now, max(0, before.Bytes-now.Bytes)
	return p.f.guarded(ctx, p.req.Fence, func() error { return p.f.writeUsage(now) })
}

// delete deletes everything that is not pinned.
func (p *purge) delete(ctx context.Context) error {
	if err := p.note(ctx); err != nil {
		return err
	}
	p.v.done("purge noted")
	if err := p.f.guarded(ctx, p.req.Fence, p.discardTrees); err != nil {
		return err
	}
	p.v.done("purge trees")
	if err := p.mark(ctx); err != nil {
		return err
	}
	if err := p.rewriteStores(ctx); err != nil {
		return err
	}
	p.v.done("purge stores")
	if err := p.awaitTrash(ctx); err != nil { // has links to LFS objects
		return err
	}
	p.v.done("purge trash")
	return p.s.prune(ctx) // submodules and LFS objects, too
}

// checkKind refuses the hash of an object that is not a commit, because the commits that contain it could not be determined.
func (p *purge) checkKind() error {
	kind, _, err := p.objects.Raw(p.commit)
	switch {
	case errors.Is(err, object.ErrNotFound), err == nil && kind == "commit":
		return nil
	case errors.Is(err, object.ErrNoCommit):
		kind = "blob"
	case err != nil:
		return object.Corruptf("read the commit: %w; run lockstep repos verify --repair, and sync", err)
	}
	return events.Errorf(events.Permanent, events.ClassConflict, "it is a %s: give the hash of a commit that introduced it", kind)
}

// foresee completes the result of a dry run.
func (p *purge) foresee(ctx context.Context) error {
	for tree := range p.affected {
		if err := p.foreseeTree(p.f, tree); err != nil {
			return err
		}
	}
	slices.Sort(p.result.Trees)
	if err := p.mark(ctx); err != nil {
		return err
	}
	outside, err := p.outside()
	if err != nil {
		return err
	}
	p.pin(outside...)
	if err := p.foreseeStores(); err != nil {
		return err
	}
	p.result.State = PurgePresent
	if len(p.result.Pins) > 0 {
		p.result.State = PurgePinned
	}
	return nil
}

func (p *purge) foreseeTree(in folder, tree string) error {
	release, ok, err := in.claim(tree)
	if err != nil {
		return err
	}
	if ok {
		release()
		p.result.Trees = append(p.result.Trees, p.v.relative(in.tree(tree)))
		return nil
	}
	p.pin(p.pinsOf(in, tree)...)
	return nil
}
