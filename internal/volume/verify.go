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
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
	"lockstep/internal/volume/fsck"
)

// VerifyRequest is a request to check everything that a repository has on the volume.
type VerifyRequest struct {
	Repo   events.RepoPath
	Fence  uint64 // of the lease held on Repo; above zero
	Repair bool   // mark damage, so that the next sync of each ref repairs it

	// Paths, if any, limits the check to these paths in all trees, as found by a [Comparer].
	Paths []string
}

// Verify reads everything that the repository has on the volume and checks that objects match their names, refs are
// complete, and each tree matches its commit. It takes as long as reading it from disk and does not disturb readers. The
// caller holds the lease, as for [Volume.Sync].
//
// A marked tree counts as incomplete: it stays published until the next sync of its ref builds another. A marked store is
// replaced by the next generation, which is fetched in full. Later checks skip marked trees that are not published.
func (v *Volume) Verify(ctx context.Context, req VerifyRequest) (fsck.Report, error) {
	if err := v.checkRequest(req.Repo, req.Fence); err != nil {
		return fsck.Report{}, err
	}
	c := &verifier{ctx: ctx, v: v, f: v.folder(req.Repo), req: req, check: fsck.New(ctx, v.relative)}
	c.check.PartStore = c.f.part
	if err := c.run(); err != nil {
		return fsck.Report{}, fmt.Errorf("verify %s: %w", req.Repo, c.f.explain(ctx, req.Fence, err))
	}
	v.janitor.add(c.f)
	report := c.check.Report()
	report.Marked = c.marked
	return report, nil
}

// verifier is the state of one Verify.
type verifier struct {
	ctx context.Context // context of the Verify call
	v   *Volume
	f   folder
	req VerifyRequest

	check     *fsck.Checker
	movedAway *tombstone
	binding   binding
	views     bool     // trees of views are damaged or missing
	marked    []string // trees and stores to be replaced, relative to the root
}

func (c *verifier) run() error {
	if _, err := os.Lstat(c.f.dir); errors.Is(err, os.ErrNotExist) {
		return notHere(c.req.Repo)
	}
	if _, err := c.f.floor(); err != nil {
		c.check.Found(c.f.fence(), "%v", err)
		return nil // nothing can be locked without a fence
	}
	if err := c.f.record(c.ctx, c.req.Fence); err != nil {
		return err
	}
	b, bound, err := c.f.readBinding()
	switch {
	case err != nil && events.DispositionOf(err) != events.Permanent:
		return err
	case err != nil: // damaged
		c.check.Found(c.f.binding(), "%v", err)
		b.Repo = c.req.Repo
	case !bound && b.MovedAway == nil:
		return notHere(c.req.Repo)
	}
	c.movedAway, c.binding = b.MovedAway, b
	links, err := c.v.allLinks(c.f, b)
	if err != nil {
		return err
	}
	trees, err := c.trees(links)
	if err != nil {
		return err
	}
	if len(c.req.Paths) > 0 {
		err = c.checkPaths(trees)
	} else {
		err = c.checkAll(trees)
	}
	if err == nil {
		err = c.checkViews()
	}
	if err != nil || !c.req.Repair {
		return err
	}
	return c.f.guarded(c.ctx, c.req.Fence, c.mark)
}

// checkAll checks all stores and these trees.
func (c *verifier) checkAll(trees []string) error {
	stores, err := c.stores(trees)
	if err != nil {
		return err
	}
	for _, dir := range slices.Sorted(maps.Keys(stores)) {
		if err := c.check.CheckStore(dir, stores[dir]); err != nil {
			return err
		}
	}
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return nil
}

func notHere(repo events.RepoPath) error {
	return events.Errorf(events.Permanent, events.ClassNotFound, "%s is not on this volume", repo)
}

// trees lists the trees to check: all except marked ones that are not published.
func (c *verifier) trees(links map[string]string) (trees []string, err error) {
	linked := map[string]bool{}
	for path, tree := range links {
		linked[tree] = true
		if _, err := os.Stat(c.f.tree(tree)); err != nil {
			c.check.Found(path, "its tree is missing; sync to build it again")
		}
	}
	entries, err := disk.ReadDir(c.f.trees())
	if err != nil {
		return nil, disk.Error("list the trees", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		_, err := os.Lstat(checkout.GitDirOf(c.f.tree(name)).Ref())
		marked := errors.Is(err, os.ErrNotExist)
		switch {
		case marked && len(c.req.Paths) > 0 && checkout.GitDirOf(c.f.tree(name)).IsMarked(): // by an earlier Verify
		case marked && linked[name]:
			c.check.Found(c.f.tree(name), "marked as damaged; sync to replace it")
		case !marked && !c.f.tookParts(c.movedAway, name): // else its files are verified at its new path
			trees = append(trees, name)
		}
	}
	return trees, nil
}

// stores groups trees by the store that they use, and always includes the current store. It reports trees without a
// store as damaged.
func (c *verifier) stores(trees []string) (map[string][]string, error) {
	stores := map[string][]string{}
	current, err := c.f.currentStore(c.movedAway)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(current.dir); err == nil {
		stores[current.dir] = nil
	}
	for _, tree := range trees {
		path := c.f.tree(tree)
		dir, err := checkout.GitDirOf(path).Store()
		if err == nil && dir != "" {
			_, err = os.Lstat(filepath.Join(dir, "objects"))
		}
		if err != nil || filepath.Dir(dir) != c.f.stores() {
			c.check.Found(path, "its objects/info/alternates does not point to a store")
			c.check.NoteDamagedTree(path)
			continue
		}
		stores[dir] = append(stores[dir], path)
	}
	return stores, nil
}

// depth returns the greatest depth of the current store and of the trees, either of which may be damaged.
func (c *verifier) depth(current store) (events.Depth, error) {
	depth := current.depth()
	trees, err := disk.ReadDir(c.f.trees())
	if err != nil {
		return 0, disk.Error("list the trees", err)
	}
	for _, tree := range trees {
		if name := tree.Name(); !c.movedAway.covers(name) {
			depth = deeper(depth, checkout.GitDirOf(c.f.tree(name)).Depth())
		}
	}
	return depth, nil
}

// begin creates an empty store, into which the next sync fetches everything at this depth or a greater one.
func (s store) begin(depth events.Depth, format object.Format) error {
	err := object.MakeBare(s.dir, format)
	if err == nil && depth != 0 {
		err = disk.Replace(filepath.Join(s.dir, depthName), []byte(depth.String()+"\n"))
	}
	if err == nil {
		err = disk.Replace(filepath.Join(s.dir, "packed-refs"), nil)
	}
	return disk.Error("create the next store", err)
}

// mark makes the next sync replace damaged trees, damaged stores and the trees that use them, and discards the prepared trees, which
// are not checked. The caller holds the file lock. After a crash, the next Verify finds the rest again.
func (c *verifier) mark() error {
	if len(c.req.Paths) == 0 || c.views {
		if err := c.v.unfinishViews(c.f, c.binding); err != nil {
			return err
		}
	}
	trees, stores := c.check.Damaged()
	if len(c.req.Paths) == 0 || len(trees) > 0 {
		if err := c.f.discardPrepared(); err != nil {
			return err
		}
	}
	if len(trees)+len(stores) == 0 {
		return nil
	}
	for _, part := range c.check.DamagedParts() { // a tree that has it is damaged, too
		if err := c.f.discard(part); err != nil {
			return err
		}
		c.marked = append(c.marked, c.v.relative(part))
	}
	current, err := c.f.currentStore(c.movedAway)
	if err != nil {
		return err
	}
	depth, err := c.depth(current)
	if err != nil {
		return err
	}
	format, _ := object.FormatOf(current.dir)
	if !current.isBegun() && len(trees) > 0 { // the store is missing
		if err := current.begin(depth, format); err != nil {
			return err
		}
	}
	for _, damaged := range stores {
		all, err := disk.ReadDir(c.f.trees())
		if err != nil {
			return disk.Error("list the trees", err)
		}
		for _, tree := range all {
			if dir, err := checkout.GitDirOf(c.f.tree(tree.Name())).Store(); err == nil && dir == damaged {
				trees = append(trees, c.f.tree(tree.Name()))
			}
		}
		if damaged == current.dir { // make an empty store the current one
			next, err := c.f.nextStore(c.movedAway)
			if err == nil {
				err = next.begin(depth, format)
			}
			if err != nil {
				return err
			}
		}
		c.marked = append(c.marked, c.v.relative(damaged))
	}
	slices.Sort(trees)
	for _, tree := range slices.Compact(trees) {
		if err := c.f.markDamaged(tree); err != nil {
			return err
		}
		c.marked = append(c.marked, c.v.relative(tree))
	}
	return nil
}
