package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/object"
	"lockstep/internal/view"
)

// SubtreesRequest asks to publish subtrees for an app: to link each selection's name to a tree of only its files.
type SubtreesRequest struct {
	Repo       events.RepoPath
	App        string
	Path       string // published name of the whole tree, relative to the root
	Tree       string // whole tree that it links to, relative to the root
	Selections *view.Set
	Fence      uint64 // of the lease held on Repo; above zero

	// Confirm is as in [SyncRequest].
	Confirm func(context.Context) error
}

// SubtreePath returns the published name of a subtree of the whole tree with the published name path, such as
// "acme/widgets" or "acme/widgets@ref".
func SubtreePath(path, app, name string) string { return subtreeFolder(path, app) + "/" + name }

func subtreeFolder(path, app string) string { return subtreesOf(path) + "/" + app }

// subtreesOf returns the folder of the subtrees of all apps.
func subtreesOf(path string) string {
	if !strings.Contains(path, "@") {
		path += "@"
	}
	return path + subtreeMark
}

// subtreeMark ends the folder of the subtrees of a published name. No ref and no app has it.
const subtreeMark = "~"

// PublishSubtrees publishes the subtrees of an app, and removes those that are no longer selected. Only
// selections that have changed since the last publication are built, and equal ones share a tree. Once all are
// complete, the links are flipped, each with one rename. The caller holds the lease.
func (v *Volume) PublishSubtrees(ctx context.Context, req SubtreesRequest) error {
	if err := v.checkRequest(req.Repo, req.Fence); err != nil {
		return err
	}
	p := &subtreePublisher{builder: v.newBuilder(v.folder(req.Repo), req.Fence, nil), req: req}
	p.slot.began = true
	err := p.run(ctx)
	p.close()
	_ = os.RemoveAll(p.f.build(p.fence))                                // otherwise the next holder removes it
	if events.ClassOf(err) == events.ClassCorrupt && ctx.Err() == nil { // the next attempt rebuilds the whole tree
		mark := func() error { return p.f.markDamaged(p.f.tree(path.Base(req.Tree))) }
		err = errors.Join(err, p.f.guarded(ctx, req.Fence, mark))
	}
	if err != nil {
		return fmt.Errorf("publish the subtrees of %s: %w", req.Repo, p.f.explain(ctx, req.Fence, err))
	}
	return nil
}

// subtreePublisher is the state of one publication. The last tree of its builder is the whole tree.
type subtreePublisher struct {
	builder
	req SubtreesRequest
}

func (p *subtreePublisher) run(ctx context.Context) (err error) {
	if p.binding, _, err = p.f.readBinding(); err != nil {
		return err
	}
	for _, name := range p.names() {
		origin := p.f.originOf(p.v, name, p.req.App, p.req.Selections)
		if origin == path.Base(p.req.Tree) {
			continue
		}
		if err := p.open(ctx); err != nil {
			return err
		}
		if err := p.publish(ctx, name, origin); err != nil {
			return err
		}
	}
	return nil
}

// names returns the published names whose subtrees are to be published: a default branch may have two.
func (p *subtreePublisher) names() []string {
	names := []string{p.req.Path}
	ref, err := builtFor(checkout.GitDirOf(p.f.tree(path.Base(p.req.Tree))))
	if err != nil || p.req.Path != p.binding.Repo.String() {
		return names
	}
	suffixed := p.req.Path + "@" + ref.Suffix()
	if _, err := os.Lstat(p.v.publishedPath(subtreeFolder(suffixed, p.req.App))); err == nil {
		names = append(names, suffixed)
	}
	return names
}

// open plans a copy of the whole tree, unless it has.
func (p *subtreePublisher) open(ctx context.Context) error {
	if p.plan != nil {
		return nil
	}
	if err := p.takeSlot(ctx); err != nil {
		return err
	}
	tree := p.f.tree(path.Base(p.req.Tree))
	last := checkout.OpenTree(tree, checkout.GitDirOf(tree).Links())
	if last == nil || !last.IsReadable() {
		return object.Corruptf("the published tree is damaged; it will be replaced")
	}
	return p.planCopy(ctx, last)
}

// publish publishes the subtrees of one published name. origin is the whole tree that they are of, or "".
func (p *subtreePublisher) publish(ctx context.Context, name, origin string) error {
	folder := subtreeFolder(name, p.req.App)
	now, err := p.v.subtreeLinks(p.f, folder)
	if err != nil {
		return err
	}
	gone, links := maps.Clone(now), map[string]string{} // those to remove, and to flip
	maps.DeleteFunc(gone, func(_, tree string) bool { return p.binding.MovedAway.covers(tree) })
	at := func(name string) string { return filepath.Join(p.v.publishedPath(folder), name) }
	for _, name := range p.req.Selections.Names() {
		if now[at(name)] == "" { // deleted by hand
			origin = ""
		}
		delete(gone, at(name))
	}
	changed := p.req.Selections.Names()
	if origin != "" {
		if changed, err = p.changedSince(ctx, origin); err != nil {
			return err
		}
	}
	trees, err := p.build(ctx, changed)
	if err != nil {
		return err
	}
	p.v.done("subtrees built")
	for name, tree := range trees {
		if tree != now[at(name)] {
			links[at(name)] = tree
		}
	}
	return p.flip(ctx, folder, links, gone)
}

// changedSince returns the names of the selections that may have other files than in another whole tree.
func (p *subtreePublisher) changedSince(ctx context.Context, origin string) ([]string, error) {
	all, g := p.req.Selections.Names(), checkout.GitDirOf(p.f.tree(origin))
	from := checkout.OpenTree(p.f.tree(origin), p.last.Links())
	if from == nil || from.Large() != p.last.Large() || !from.Parts().Equal(p.last.Parts()) ||
		p.f.generationOf(origin) != p.store.number() || g.BuiltFrom() == p.plan.Commit.String() {
		return all, nil
	}
	before, known := p.objects.TreeOf(object.ParseID(g.BuiltFrom()))
	if !known {
		return all, nil
	}
	diff, err := checkout.NewDiff(ctx, p.objects, before, p.plan.Tree(), checkout.Parts{}, p.v.cfg.MaxTreeFiles)
	if events.ClassOf(err) == events.ClassCorrupt && ctx.Err() == nil { // some of its folders are gone
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	paths := diff.Paths()
	if p.last.Links() == checkout.LinksSkip || !p.last.IsPlain() && slices.ContainsFunc(paths, lfs.MayDecide) {
		return all, nil
	}
	matches, err := p.req.Selections.Match(paths)
	if err != nil {
		return nil, err
	}
	return matches.Views(), nil
}

// flip changes links in a folder, and removes those that are gone. The next tidy retires the trees that they have
// linked to: whether another name does is only known from all of them.
func (p *subtreePublisher) flip(ctx context.Context, folder string, links, gone map[string]string) error {
	for at := range links {
		if info, err := os.Lstat(at); err == nil && info.Mode().Type() != os.ModeSymlink {
			return conflict("%s is not a link of Lockstep; move it away and sync again", p.v.relative(at))
		}
	}
	if len(links) > 0 { // a crashed holder may have placed some of the trees
		err := disk.FlushChanged([]string{p.f.fence()}, []string{p.f.trees(), p.f.dir})
		if err != nil {
			return disk.Error("publish the subtrees", err)
		}
	}
	isNew := len(links)+len(gone) > 0
	if isNew {
		if err := p.v.confirm(ctx, p.req.Confirm); err != nil {
			return err
		}
	}
	err := p.f.guarded(ctx, p.fence, func() error {
		if isNew {
			if err := p.f.noteOrigin(folder, origin{}); err != nil { // until all are flipped
				return err
			}
			p.v.done("subtrees unfinished")
			if err := p.relink(p.v.publishedPath(folder), links, gone); err != nil {
				return disk.Error("publish the subtrees", err)
			}
		}
		return p.f.noteOrigin(folder, origin{path.Base(p.req.Tree), p.req.Selections.Digest()})
	})
	if err == nil {
		p.v.done("subtrees flipped")
	}
	return err
}

func (p *subtreePublisher) relink(dir string, links, gone map[string]string) error {
	if err := errors.Join(p.f.unretire(maps.Values(links)), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	for at, tree := range links {
		if err := relink(at, linkTarget(p.f, at, tree), p.f.flip(p.fence)); err != nil {
			return err
		}
		p.v.done("subtree flipped")
	}
	for at := range gone {
		if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return disk.SyncPath(p.v.root, dir)
}
