package volume

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/object"
	"lockstep/internal/git/wildmatch"
	"lockstep/internal/view"
)

// manyViewTrees is the number of new trees beyond which syncing the whole file system takes less time than
// each of their files.
const manyViewTrees = 64

// build builds the trees of views that do not exist yet, and notes the names of all.
func (p *viewPublisher) build(ctx context.Context, views []string) error {
	if len(views) == 0 {
		return nil
	}
	if err := errors.Join(p.f.discard(p.building()), os.MkdirAll(p.building(), 0o755)); err != nil {
		return disk.Error("build the trees of views", err)
	}
	var err error
	if p.modes, err = checkout.ProbeModes(p.building()); err != nil {
		return err
	}
	c := &viewComparer{v: p.v, req: ViewsRequest{Views: p.req.Views}, objects: p.objects, tree: p.tree}
	subtrees, err := c.subtrees(ctx, views...)
	if err != nil {
		return err
	}
	g, building := errgroup.WithContext(ctx)
	for part := range slices.Chunk(views, len(views)/runtime.GOMAXPROCS(0)+1) {
		objects := p.objects.Fork()
		g.Go(func() error {
			defer objects.Close()
			for _, name := range part {
				if err := p.buildOne(building, objects, name, subtrees[name]); err != nil {
					return fmt.Errorf("view %s: %w", name, err)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	p.v.done("views checked out")
	return p.place(ctx)
}

// buildOne builds the tree of a view unless there is one.
func (p *viewPublisher) buildOne(ctx context.Context, objects *object.Store, name, subtree string) error {
	at := viewPosition{p.req.Views.Only(name).Top(), &wildmatch.Matcher{}}
	files, err := p.whole.Select(at)
	switch {
	case err != nil:
		return object.Corruptf("the published tree is damaged; the next sync replaces it: %w", err)
	case at.matcher.IsExhausted():
		return tooComplex(view.ErrTooComplex)
	}
	tree, err := p.reserve(name, subtree, files)
	if tree == "" || err != nil {
		return err
	}
	written, err := files.Build(ctx, objects, filepath.Join(p.building(), tree), p.ref.String(), p.commit, p.modes,
		pointedBy(objects))
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made[tree] = written
	return nil
}

// reserve notes the name of a view's tree. It returns the name if the tree is to be built, else "".
func (p *viewPublisher) reserve(view, subtree string, files *checkout.Subset) (tree string, err error) {
	name := subtree
	if variant := files.Variant(); variant != "" {
		name += "-" + variant
	}
	tree, exists := name, false
	for n := 2; ; n++ {
		path := p.f.views().tree(tree)
		_, err := os.Lstat(checkout.GitDirOf(path).Ref())
		if exists = err == nil; exists {
			break
		}
		if _, err = os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return "", disk.Error("look for the tree of a view", err)
		}
		tree = fmt.Sprintf("%s-%d", name, n) // instead of the damaged one, which readers may have open
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.new[view] = tree
	if _, begun := p.made[tree]; begun || exists {
		return "", nil
	}
	p.made[tree] = nil
	if p.files += files.Len(); p.files > maxViewTrees*p.v.cfg.MaxTreeFiles {
		return "", object.Quotaf("the trees of all views have more than %d files; use fewer or smaller views, "+
			"or none with trees", maxViewTrees*p.v.cfg.MaxTreeFiles)
	}
	return tree, nil
}

// place makes the trees durable and gives them their names.
func (p *viewPublisher) place(ctx context.Context) error {
	w := p.f.views()
	if err := errors.Join(os.MkdirAll(w.trees(), 0o755), p.flush(ctx)); err != nil {
		return disk.Error("build the trees of views", err)
	}
	for tree := range p.made {
		if err := os.Rename(filepath.Join(p.building(), tree), w.tree(tree)); err != nil {
			return disk.Error("build the trees of views", err)
		}
		p.v.done("view placed")
	}
	clear(p.made)
	return disk.Error("build the trees of views", disk.FlushChanged(nil, []string{w.trees(), w.dir, p.f.dir}))
}

func (p *viewPublisher) flush(ctx context.Context) error {
	if len(p.made) > manyViewTrees {
		return disk.SyncVolume(p.v.root)
	}
	for tree, written := range p.made {
		path := filepath.Join(p.building(), tree)
		if err := disk.Flush(ctx, path, pathsIn(path, written)); err != nil {
			return err
		}
	}
	return nil
}

// flip changes the links of views, and removes those that are gone. The caller holds the file lock.
func (p *viewPublisher) flip(l viewLinks, links map[string]string, gone map[string]string) error {
	done := l
	done.Tree, done.Commit, done.Kind, done.Views = filepath.Base(p.whole.Path()), p.commit.String(), p.kind,
		p.req.Views.Digest()
	if len(links)+len(gone) == 0 {
		return done.write(p.f, false)
	}
	unfinished := l
	unfinished.Tree = ""
	if err := unfinished.write(p.f, true); err != nil {
		return err
	}
	p.v.done("views unfinished")
	dir, w := l.folder(p.v, p.binding), p.f.views()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return disk.Error("publish the views", err)
	}
	for at, tree := range links {
		if err := relink(at, linkTarget(w, at, tree), p.f.flip(p.req.Fence)); err != nil {
			return disk.Error("publish a view", err)
		}
		p.v.done("view flipped")
	}
	for at := range gone {
		if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
			return disk.Error("unpublish a view", err)
		}
	}
	if err := disk.SyncPath(p.v.root, dir); err != nil {
		return disk.Error("publish the views", err)
	}
	return done.write(p.f, false)
}

// pointedBy returns the targets of the LFS pointers in a store.
func pointedBy(objects *object.Store) checkout.Pointed {
	return func(blob object.ID, sum [sha256.Size]byte, size int64) bool {
		pointer, ok, err := lfs.ReadPointer(objects, blob)
		// git-lfs ignores the OID of an empty object
		return err == nil && ok && pointer.Size == size && (pointer.OID == sum || size == 0)
	}
}
