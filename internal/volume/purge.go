package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// PurgeRequest requests the deletion of a commit, such as one with a secret.
type PurgeRequest struct {
	Repo   events.RepoPath
	Commit string // hash
	Fence  uint64 // of the lease held on Repo; above zero

	// Replaced deletes everything else that is not published as well: where history is cut, a replaced tree may have the secret
	// although nothing shows that it descends from the commit.
	Replaced bool

	DryRun bool // change nothing
}

// PurgeState is the outcome of a purge in one repository.
type PurgeState string

// The states.
const (
	PurgeAbsent    PurgeState = "absent"    // nothing on the volume has it
	PurgePresent   PurgeState = "present"   // dry run: it would be deleted
	PurgePurged    PurgeState = "purged"    // it is deleted, and nothing on the volume has it
	PurgePinned    PurgeState = "pinned"    // readers, workspaces or adopted clones have it; the rest is deleted
	PurgePublished PurgeState = "published" // a published ref has it; nothing is deleted
)

// PurgeResult is the result of a [Volume.Purge].
type PurgeResult struct {
	State     PurgeState
	Published []PurgePublication // that have the commit
	Pins      []Pin              // that keep it
	Trees     []string           // replaced trees that were deleted, or would be, relative to the root
	Objects   int                // objects of the commit, and of the replaced ones that descend from it, that were or would be deleted
	Freed     int64              // bytes; 0 if usage grew
	Usage     Usage              // after

	// Shared are files that the commit introduced, and whose content a kept commit has too. Known is false if its parents are not
	// kept: then these are all files of the commit that are kept.
	Shared      []SharedFile // at most 20
	SharedCount int
	Known       bool

	// Unknown are the commits of replaced trees whose history is cut, so that they may descend from the commit.
	Unknown []string

	MovedTo events.RepoPath // where the repository has moved to; it needs a separate purge
}

// waits reports whether a later purge may delete more, once pins are released.
func (r PurgeResult) waits() bool {
	return slices.ContainsFunc(r.Pins, func(pin Pin) bool { return pin.Kind == PinProcess || pin.Kind == PinWorkspace })
}

// PurgePublication is a published name whose commit is the purged one or descends from it.
type PurgePublication struct {
	Name   string `json:"name"` // relative to the root; for a view, its own
	Ref    string `json:"ref"`
	Commit string `json:"commit"`
	Part   string `json:"submodule,omitempty"` // path of the submodule that is at the commit
}

// SharedFile is a file whose content is kept.
type SharedFile struct {
	Path string `json:"path"` // in the purged commit
	Blob string `json:"blob"`
	In   string `json:"in"` // "name: path" of a published file with that content; "" if only older commits have it
}

// maxShared is the number of shared files that are listed.
const maxShared = 20

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

// discardTrees discards the affected trees that are not pinned, and everything private. A pinned tree is marked so that GC discards
// it as soon as it is unpinned. The caller holds the file lock.
func (p *purge) discardTrees() error {
	leftovers, err := p.f.leftovers()
	if err != nil {
		return err
	}
	more, err := p.f.views().leftovers()
	if err != nil {
		return err
	}
	for _, path := range append(leftovers, more...) {
		if err := p.f.discard(path); err != nil {
			return err
		}
	}
	if err := p.f.discardPrepared(); err != nil {
		return err
	}
	for _, path := range p.stale {
		if err := unpublish(path); err != nil {
			return err
		}
	}
	for tree := range p.affected {
		if err := p.discardTree(p.f, tree); err != nil {
			return err
		}
	}
	slices.Sort(p.result.Trees)
	if err := p.discardViews(); err != nil {
		return err
	}
	if err := p.f.dropMarks(nil); err != nil {
		return err
	}
	return p.f.dropStores(p.binding.MovedAway)
}

// discardTree discards a replaced tree, or marks it as one whose grace has ended long ago.
func (p *purge) discardTree(in folder, tree string) error {
	gone, err := in.discardUnpinned(tree)
	if err != nil {
		return err
	}
	if gone {
		p.result.Trees = append(p.result.Trees, p.v.relative(in.tree(tree)))
		return nil
	}
	p.pin(p.pinsOf(in, tree)...)
	if in.isPurgeMarked(tree) { // a new mark would not tell readers for a moment
		return nil
	}
	if err := in.markRetired([]string{tree}, ""); err != nil {
		return err
	}
	long := time.Unix(0, 0)
	return disk.Error("retire a tree", os.Chtimes(in.mark(tree), long, long))
}

// discardViews discards all trees of views that no name links to: their commits are unknown, and building them again is cheap.
func (p *purge) discardViews() error {
	moved := func(l viewLinks) bool { return p.affected[l.Tree] && p.binding.MovedAway.covers(l.Tree) }
	if err := p.v.unpublishViews(p.f, p.binding, moved); err != nil {
		return err
	}
	links, err := p.v.viewTreeLinks(p.f, p.binding)
	if err != nil {
		return err
	}
	w, linked := p.f.views(), linkedTrees(links)
	trees, err := disk.ReadDir(w.trees())
	if err != nil {
		return disk.Error("list the trees of views", err)
	}
	for _, tree := range trees {
		if linked[tree.Name()] || isPrivate(tree.Name()) {
			continue
		}
		if err := p.discardTree(w, tree.Name()); err != nil {
			return err
		}
	}
	return w.dropMarks(nil)
}

// replaced reports whether there are trees that are not published.
func (p *purge) replaced() (bool, error) {
	linked := linkedTrees(p.links)
	return slices.ContainsFunc(p.trees, func(tree string) bool { return !linked[tree] }), nil
}

// survey finds the published names and replaced trees that have the commit.
func (p *purge) survey(ctx context.Context) (err error) {
	if p.links, err = p.v.allLinks(p.f, p.binding); err != nil {
		return err
	}
	entries, err := disk.ReadDir(p.f.trees())
	if err != nil {
		return disk.Error("list the trees", err)
	}
	linked := linkedTrees(p.links)
	for _, entry := range entries {
		if isPrivate(entry.Name()) {
			continue
		}
		p.trees = append(p.trees, entry.Name())
		has, unknown, _, err := p.has(ctx, entry.Name())
		if err != nil {
			return err
		}
		has = has || p.noted && !linked[entry.Name()] && p.f.isPurgeMarked(entry.Name()) // its ancestors may be deleted by now
		if has || p.req.Replaced && !linked[entry.Name()] {
			p.affected[entry.Name()] = true
		} else if unknown && !linked[entry.Name()] {
			p.result.Unknown = append(p.result.Unknown, checkout.GitDirOf(p.f.tree(entry.Name())).BuiltFrom())
		}
	}
	slices.Sort(p.result.Unknown)
	p.result.Unknown = slices.Compact(p.result.Unknown)
	return p.publications(ctx)
}

// publications finds the published names that have the commit. Those of a repository that has moved away are only kept for their
// grace, and count as replaced.
func (p *purge) publications(ctx context.Context) error {
	for path, tree := range p.links {
		if !p.affected[tree] {
			continue
		}
		if p.binding.MovedAway.covers(tree) {
			p.stale = append(p.stale, path)
			continue
		}
		_, _, part, err := p.has(ctx, tree)
		if err != nil {
			return err
		}
		p.publication(path, tree, part)
	}
	all, err := p.v.allViewLinks(p.f, p.binding)
	if err != nil {
		return err
	}
	for _, l := range all {
		has := p.affected[l.Tree]
		if l.Tree == "" && l.Commit != "" { // unfinished
			known, err := p.ancestors(ctx, object.ParseID(l.Commit))
			if err != nil {
				return err
			}
			has = known&isPurged != 0
		}
		if !has || p.binding.MovedAway.covers(l.Tree) {
			continue
		}
		views, err := l.trees(p.v, p.f, p.binding)
		if err != nil {
			return err
		}
		for path := range views {
			p.publication(path, l.Tree, "")
		}
	}
	slices.SortFunc(p.result.Published, func(a, b PurgePublication) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

func (p *purge) publication(path, tree, part string) {
	g := checkout.GitDirOf(p.f.tree(tree))
	ref, _ := g.BuiltFor()
	p.result.Published = append(p.result.Published, PurgePublication{
		Name: p.v.relative(path), Ref: ref.String(), Commit: g.BuiltFrom(), Part: part,
	})
}
