package volume

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
	"lockstep/internal/view"
)

// ViewsRequest asks which views of a commit have changed.
type ViewsRequest struct {
	Repo   events.RepoPath
	Commit string    // a published commit
	Tree   string    // its tree, relative to the root
	Views  *view.Set // not empty
	Base   string    // commit at which the same views were last compared; "" if there is none
	All    bool      // count every view as changed, to list it whole
	Whole  []string  // views to count as changed, to list them whole

	// Subtrees returns the subtree that each view had when it last changed, by name. It is called only if
	// Base is "" or no longer available, or All or Whole is set.
	Subtrees func(context.Context) (map[string]string, error)
}

// ChangedView is a view that has changed.
type ChangedView struct {
	Name      string
	Subtree   string        // ID of the tree object with only the view's files; that of the empty tree if it has none
	Files     []events.File // changed since Base, sorted by path
	Full      bool          // Files lists the whole view, whatever has changed
	Truncated bool          // there are more files than Files lists
}

// Limits on the files that all views of a commit list together: one script adds all their results to Redis.
const (
	maxViewFiles = 20      // their number, as a multiple of [Config].MaxFiles
	maxViewBytes = 4 << 20 // in their paths
)

// Views returns the views that have changed, sorted by name. With a Base, these are the views with a path
// that differs from it; otherwise, those with a different subtree. Both give the same result, because a
// subtree differs if and only if a path does. Only the latter, which reads whole trees, takes a slot: the
// former reads less than the sync just before it. The caller holds the lease, so that nothing is pruned
// meanwhile.
func (v *Volume) Views(ctx context.Context, req ViewsRequest) ([]ChangedView, error) {
	changed, err := v.changedViews(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("compare the views of %s: %w", req.Repo, err)
	}
	return changed, nil
}

func (v *Volume) changedViews(ctx context.Context, req ViewsRequest) ([]ChangedView, error) {
	c, err := v.newViewComparer(req)
	if err != nil {
		return nil, err
	}
	defer c.objects.Close()
	if object.IsID(req.Base) && !req.All && len(req.Whole) == 0 {
		changed, err := c.sinceBase(ctx)
		if events.ClassOf(err) != events.ClassCorrupt || ctx.Err() != nil { // otherwise some of its objects are gone
			return changed, err
		}
	}
	slot := slot{slots: v.cfg.Slots, began: true}
	if err := slot.take(ctx, nil); err != nil {
		return nil, err
	}
	defer slot.leave()
	return c.bySubtree(ctx)
}

// viewComparer is the state of one comparison.
type viewComparer struct {
	v       *Volume
	req     ViewsRequest
	objects *object.Store // of all store generations, and of the tree's submodules
	tree    object.ID
	parts   checkout.Parts // of the tree
}

func (v *Volume) newViewComparer(req ViewsRequest) (*viewComparer, error) {
	f := v.folder(req.Repo)
	dirs, err := f.storeDirs()
	if err != nil {
		return nil, err
	}
	parts, err := checkout.GitDirOf(filepath.Join(v.root, filepath.FromSlash(req.Tree))).Parts()
	if err != nil {
		return nil, disk.Error("read the submodules of a tree", err)
	}
	c := &viewComparer{v: v, req: req, objects: object.Open(append(dirs, f.partsOf(parts)...)...), parts: parts}
	var ok bool
	if c.tree, ok = c.objects.TreeOf(object.ParseID(req.Commit)); !ok {
		c.objects.Close()
		return nil, object.Corruptf("commit %s is not in the store", req.Commit)
	}
	return c, nil
}

// sinceBase compares by the paths that differ from those of the base.
func (c *viewComparer) sinceBase(ctx context.Context) ([]ChangedView, error) {
	base, ok := c.objects.TreeOf(object.ParseID(c.req.Base))
	if !ok {
		return nil, object.Corruptf("commit %s is not in the store", c.req.Base)
	}
	diff, matches, err := c.match(ctx, base, c.req.Views)
	if err != nil {
		return nil, err
	}
	subtrees, err := c.req.Views.IDs(ctx, c.objects, c.tree, matches.Views())
	if err != nil {
		return nil, err
	}
	changed := make([]ChangedView, 0, len(subtrees))
	for _, name := range matches.Views() {
		changed = append(changed, ChangedView{Name: name, Subtree: subtrees[name]})
	}
	return changed, c.list(ctx, changed, diff, matches)
}

// bySubtree compares by subtree.
func (c *viewComparer) bySubtree(ctx context.Context) ([]ChangedView, error) {
	before, err := c.req.Subtrees(ctx)
	if err != nil {
		return nil, err
	}
	names := c.req.Views.Names()
	subtrees, err := c.req.Views.IDs(ctx, c.objects, c.tree, names)
	if err != nil {
		return nil, err
	}
	var changed []ChangedView
	for _, name := range names {
		if subtrees[name] != before[name] || c.req.All || slices.Contains(c.req.Whole, name) {
			changed = append(changed, ChangedView{Name: name, Subtree: subtrees[name], Full: true})
		}
	}
	if len(changed) == 0 {
		return nil, nil
	}
	names = names[:0]
	for _, one := range changed {
		names = append(names, one.Name)
	}
	diff, matches, err := c.match(ctx, object.ZeroID, c.req.Views.Only(names...))
	if err != nil {
		return nil, err
	}
	return changed, c.list(ctx, changed, diff, matches)
}

// match finds which views have the paths that differ from those of a tree.
func (c *viewComparer) match(
	ctx context.Context, before object.ID, views *view.Set,
) (*checkout.Diff, *view.Matches, error) {
	diff, err := checkout.NewDiff(ctx, c.objects, before, c.tree, c.parts, c.v.cfg.MaxTreeFiles)
	if err != nil {
		return nil, nil, err
	}
	matches, err := views.Match(diff.Paths())
	return diff, matches, err
}

// list fills in the files of the changed views.
func (c *viewComparer) list(
	ctx context.Context, changed []ChangedView, diff *checkout.Diff, matches *view.Matches,
) (err error) {
	left, leftBytes := maxViewFiles*c.v.cfg.MaxFiles, maxViewBytes
	for i := range changed {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		one := &changed[i]
		var paths []int32
		paths, one.Truncated = matches.Paths(one.Name, min(c.v.cfg.MaxFiles, left))
		for n, path := range paths {
			if leftBytes -= len(diff.Path(path)); leftBytes < 0 {
				paths, one.Truncated, leftBytes = paths[:n], true, 0
				break
			}
		}
		files, err := diff.Files(paths)
		if err != nil {
			return err
		}
		one.Files = filesOf(files)
		left -= len(paths)
	}
	return nil
}

// storeDirs returns all generations of the repository's store, the last one first.
func (f folder) storeDirs() (dirs []string, err error) {
	generations, err := f.generations()
	for _, n := range slices.Backward(generations) {
		dirs = append(dirs, f.generation(n).dir)
	}
	return dirs, err
}

// openStores opens all generations of the repository's store, and the stores of its submodules.
func (f folder) openStores() (*object.Store, error) {
	dirs, err := f.storeDirs()
	if err != nil {
		return nil, err
	}
	parts, err := f.listParts()
	if err != nil {
		return nil, err
	}
	return object.Open(append(dirs, parts...)...), nil
}
