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
}

// Verify reads everything that the repository has on the volume and checks that objects match their names,
// refs are complete, and each tree matches its commit. It takes as long as reading it from disk and does not
// disturb readers. The caller holds the lease, as for [Volume.Sync].
//
// A marked tree counts as incomplete: it stays published until the next sync of its ref builds another. A
// marked store is replaced by the next generation, which is fetched in full. Later checks skip marked trees
// that are not published.
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

	check   *fsck.Checker
	binding binding
	marked  []string // trees and stores to be replaced, relative to the root
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
	c.binding = b
	links, err := c.v.withSubtrees(c.v.allLinks, c.f, b)
	if err != nil {
		return err
	}
	if err := c.checkStores(links); err != nil || !c.req.Repair {
		return err
	}
	return c.f.guarded(c.ctx, c.req.Fence, c.mark)
}

func notHere(repo events.RepoPath) error {
	return events.Errorf(events.Permanent, events.ClassNotFound, "%s is not on this volume", repo)
}

// checkStores checks the current store, and all others with the trees that use them. It skips marked trees
// that are not published.
func (c *verifier) checkStores(links map[string]string) error {
	linked := map[string]bool{}
	for path, tree := range links {
		linked[tree] = true
		if _, err := os.Stat(c.f.tree(tree)); err != nil {
			c.check.Found(path, "its tree is missing; sync to build it again")
		}
	}
	current, err := c.f.currentStore(c.binding.MovedAway)
	if err != nil {
		return err
	}
	stores, subtrees := map[string][]string{}, []string(nil)
	if _, err := os.Lstat(current.dir); err == nil {
		stores[current.dir] = nil
	}
	entries, err := disk.ReadDir(c.f.trees())
	if err != nil {
		return disk.Error("list the trees", err)
	}
	for _, entry := range entries {
		name, tree := entry.Name(), c.f.tree(entry.Name())
		if _, err := os.Lstat(checkout.GitDirOf(tree).Ref()); errors.Is(err, os.ErrNotExist) {
			if linked[name] {
				c.check.Found(tree, "marked as damaged; sync to replace it")
			}
			continue
		}
		if c.f.tookParts(c.binding.MovedAway, name) { // its files are verified at its new path
			continue
		}
		dir, err := checkout.GitDirOf(tree).Store()
		if err == nil {
			_, err = os.Lstat(filepath.Join(dir, "objects"))
		}
		if err != nil || filepath.Dir(dir) != c.f.stores() {
			c.check.Found(tree, "its objects/info/alternates does not point to a store")
			c.check.NoteDamagedTree(tree)
			continue
		}
		switch {
		case checkout.SelectionOf(name) == "":
			stores[dir] = append(stores[dir], tree)
		case linked[name] || checkout.GitDirOf(tree).Large() == "": // otherwise its pointers may be gone
			subtrees = append(subtrees, tree)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(stores)) {
		if err := c.check.CheckStore(dir, stores[dir]); err != nil {
			return err
		}
	}
	objects, err := c.f.openStores()
	if err != nil {
		return err
	}
	defer objects.Close()
	return c.check.CheckSelections(subtrees, objects)
}

// mark makes the next sync replace damaged trees, damaged stores and the trees that use them, and discards
// the prepared trees, which are not checked. The caller holds the file lock. After a crash, the next Verify
// finds the rest again.
func (c *verifier) mark() error {
	dirs, err := c.f.subtreeFolders(c.binding)
	if err != nil {
		return err
	}
	if err := c.f.forgetOrigins(dirs); err != nil {
		return err
	}
	if err := c.f.limitPrepared(0); err != nil {
		return err
	}
	trees, stores, parts := c.check.Damaged()
	if len(trees)+len(stores) == 0 {
		return nil
	}
	for _, part := range parts { // a tree that has it is damaged, too
		if err := c.f.discard(part); err != nil {
			return err
		}
	}
	current, err := c.f.currentStore(c.binding.MovedAway)
	if err != nil {
		return err
	}
	all, err := disk.ReadDir(c.f.trees())
	if err != nil {
		return disk.Error("list the trees", err)
	}
	depth := current.depth()
	for _, tree := range all {
		g := checkout.GitDirOf(c.f.tree(tree.Name()))
		if !c.binding.MovedAway.covers(tree.Name()) {
			depth = deeper(depth, depthOf(g))
		}
		if dir, err := g.Store(); err == nil && slices.Contains(stores, dir) {
			trees = append(trees, c.f.tree(tree.Name()))
		}
	}
	if slices.Contains(stores, current.dir) || !current.isBegun() {
		format, _ := object.FormatOf(current.dir)
		if err := c.f.beginNext(c.binding.MovedAway, depth, format); err != nil {
			return err
		}
	}
	slices.Sort(trees)
	trees = slices.Compact(trees)
	for _, tree := range trees {
		if err := c.f.markDamaged(tree); err != nil {
			return err
		}
	}
	for _, path := range slices.Concat(parts, stores, trees) {
		c.marked = append(c.marked, c.v.relative(path))
	}
	return nil
}
