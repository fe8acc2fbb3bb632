package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

const (
	// maxSubtrees is the number of files in all subtrees that are built at once, as a multiple of
	// [Config].MaxTreeFiles.
	maxSubtrees = 10

	// manySubtrees is the number of new subtrees beyond which syncing the whole file system takes less time than
	// each of their files.
	manySubtrees = 64
)

// newSubtree is the tree of a selection.
type newSubtree struct {
	tree, selection string   // names
	isNew           bool     // the tree is to be built
	written         []string // new files that are no hard links, by path
}

// build builds the trees of selections that do not exist yet, and returns the names of all.
func (p *subtreePublisher) build(ctx context.Context, names []string) (trees map[string]string, err error) {
	building := p.f.build(p.fence)
	if len(names) == 0 {
		return nil, nil
	}
	if err := errors.Join(p.f.discard(building), os.MkdirAll(building, 0o755)); err != nil {
		return nil, disk.Error("build the subtrees", err)
	}
	items, err := p.plan.Items()
	if err != nil {
		return nil, object.Corruptf("read the published tree: %w", err)
	}
	trees, missing, err := p.choose(ctx, items, names)
	if err != nil {
		return nil, err
	}
	err = inParts(ctx, missing, func(ctx context.Context, part []newSubtree) error {
		objects := p.objects.Fork()
		defer objects.Close()
		for i := range part {
			if err := p.buildOne(ctx, objects, items, &part[i]); err != nil {
				return fmt.Errorf("%s: %w", part[i].selection, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	p.v.done("subtrees checked out")
	return trees, p.place(ctx, missing)
}

// inParts calls fn concurrently with parts of a list.
func inParts[T any](ctx context.Context, list []T, fn func(ctx context.Context, part []T) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for part := range slices.Chunk(list, len(list)/runtime.GOMAXPROCS(0)+1) {
		g.Go(func() error { return fn(ctx, part) })
	}
	return g.Wait()
}

// choose returns the names of the trees of selections, and those that do not exist yet.
func (p *subtreePublisher) choose(
	ctx context.Context, items []checkout.Item, names []string,
) (trees map[string]string, missing []newSubtree, err error) {
	ids, err := p.req.Selections.IDs(ctx, p.objects, p.plan.Tree(), names)
	if err != nil {
		return nil, nil, err
	}
	there, err := p.f.subtrees(ids)
	if err != nil {
		return nil, nil, err
	}
	known, distinct := map[string]string{}, []newSubtree{} // trees, by the ID of what is selected
	for _, name := range names {
		if _, ok := known[ids[name]]; !ok {
			known[ids[name]] = ""
			distinct = append(distinct, newSubtree{selection: name})
		}
	}
	files := atomic.Int64{}
	err = inParts(ctx, distinct, func(ctx context.Context, part []newSubtree) error {
		for i := range part {
			if err := p.chooseOne(ctx, items, ids[part[i].selection], there, &part[i], &files); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for _, one := range distinct {
		known[ids[one.selection]] = one.tree
		if one.isNew {
			missing = append(missing, one)
		}
	}
	trees = map[string]string{}
	for _, name := range names {
		trees[name] = known[ids[name]]
	}
	return trees, missing, nil
}

// chooseOne names the tree of a selection, and counts the files of all that are new.
func (p *subtreePublisher) chooseOne(
	ctx context.Context, items []checkout.Item, id string, there map[string]string, one *newSubtree, files *atomic.Int64,
) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	plan, err := p.plan.Select(items, p.req.Selections.At(one.selection))
	if err != nil {
		return fmt.Errorf("%s: %w", one.selection, err)
	}
	content := plan.SelectionName(id)
	if one.tree = there[content]; p.isUsable(one.tree) {
		return nil
	}
	limit := maxSubtrees * p.v.cfg.MaxTreeFiles
	if files.Add(int64(plan.Size())) > int64(limit) {
		return object.Quotaf("all selections together have more than %d files; use fewer or smaller ones, or none with "+
			"trees", limit)
	}
	path, err := unusedPath(p.f.tree(fmt.Sprintf("%d-%s", p.fence, content)))
	one.tree, one.isNew = filepath.Base(path), true
	return err
}

// subtrees returns the names of the repository's subtrees of some tree objects, by content. Of several, the last is
// the one most likely undamaged.
func (f folder) subtrees(ids map[string]string) (map[string]string, error) {
	wanted, trees := map[string]bool{}, map[string]string{}
	for _, id := range ids {
		wanted[id] = true
	}
	dir, err := os.Open(f.trees())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, disk.Error("list the trees", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1) // unlike a sorted list, takes a few milliseconds for thousands
	for _, tree := range names {
		_, content, _ := strings.Cut(tree, "-")
		if id, _, _ := strings.Cut(content, "-"); !wanted[id] {
			continue
		}
		if other := trees[content]; len(tree) > len(other) || len(tree) == len(other) && tree > other {
			trees[content] = tree
		}
	}
	return trees, disk.Error("list the trees", err)
}

// isUsable reports whether a subtree exists, is undamaged, and needs no other store than the whole tree.
func (p *subtreePublisher) isUsable(tree string) bool {
	_, err := os.Lstat(checkout.GitDirOf(p.f.tree(tree)).Ref())
	return err == nil && p.f.generationOf(tree) == p.store.number()
}

func (p *subtreePublisher) buildOne(
	ctx context.Context, objects *object.Store, items []checkout.Item, made *newSubtree,
) error {
	dst := filepath.Join(p.f.build(p.fence), made.tree)
	plan, err := p.plan.Select(items, p.req.Selections.At(made.selection))
	if err != nil {
		return err
	}
	selected, err := plan.Items()
	if err == nil {
		err = disk.Error("build the tree", os.Mkdir(dst, 0o755))
	}
	if err != nil {
		return err
	}
	files, err := plan.Build(ctx, objects, selected, dst, p.last.Links(), p.v.cfg.checkoutLimits(), p.progress.count)
	if err == nil {
		err = p.writeGitDir(dst, files)
	}
	if err != nil {
		return err
	}
	made.written = pathsIn(dst, slices.Concat(files.Written, files.GitWritten))
	return nil
}

// place makes new trees durable, and then gives them their names, with which a later publication finds them.
func (p *subtreePublisher) place(ctx context.Context, made []newSubtree) error {
	if len(made) == 0 {
		return nil
	}
	err := cmp.Or(os.MkdirAll(p.f.trees(), 0o755), p.flushLarge())
	if err == nil && len(made) > manySubtrees {
		err = disk.SyncVolume(p.v.root)
	}
	for _, one := range made {
		dst := filepath.Join(p.f.build(p.fence), one.tree)
		if err == nil && len(made) <= manySubtrees {
			err = disk.Flush(ctx, dst, one.written)
		}
	}
	for _, one := range made {
		if err == nil {
			err = os.Rename(filepath.Join(p.f.build(p.fence), one.tree), p.f.tree(one.tree))
			p.v.done("subtree placed")
		}
	}
	return disk.Error("build the subtrees", err)
}
