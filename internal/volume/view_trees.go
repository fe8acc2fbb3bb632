package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/object"
	"lockstep/internal/view"
)

// ViewTreesRequest asks to publish the views of an app: to link each to a tree of only its files.
type ViewTreesRequest struct {
	Repo  events.RepoPath
	App   string
	Path  string // published name of the whole tree, relative to the root
	Tree  string // whole tree that it links to, relative to the root
	Views *view.Set
	Fence uint64 // of the lease held on Repo; above zero

	// Confirm is as in [SyncRequest].
	Confirm func(context.Context) error
}

// ViewPath returns the published name of a view of the whole tree with the published name path, such as
// "acme/widgets" or "acme/widgets@ref".
func ViewPath(path, app, view string) string { return viewFolder(path, app) + "/" + view }

func viewFolder(path, app string) string {
	if !strings.Contains(path, "@") {
		path += "@"
	}
	return path + viewMark + "/" + app
}

// maxViewTrees is the number of files in all trees of views that are built at once, as a multiple of
// [Config].MaxTreeFiles.
const maxViewTrees = 10

// PublishViews publishes the views of an app, and removes those that the set no longer has. A tree is named
// by its content, so views with equal files share one, and only the trees of views that have changed are
// built. Once all are complete, the links are flipped, each with one rename. The caller holds the lease.
func (v *Volume) PublishViews(ctx context.Context, req ViewTreesRequest) error {
	if err := v.checkRequest(req.Repo, req.Fence); err != nil {
		return err
	}
	p := &viewPublisher{v: v, f: v.folder(req.Repo), req: req}
	err := p.run(ctx)
	p.close()
	if events.ClassOf(err) == events.ClassCorrupt && ctx.Err() == nil { // the next attempt rebuilds the whole tree
		mark := func() error { return p.f.markDamaged(p.f.tree(path.Base(req.Tree))) }
		err = errors.Join(err, p.f.guarded(ctx, req.Fence, mark))
	}
	if err != nil {
		return fmt.Errorf("publish the views of %s: %w", req.Repo, p.f.explain(ctx, req.Fence, err))
	}
	return nil
}

// viewPublisher is the state of one publication of views.
type viewPublisher struct {
	v   *Volume
	f   folder
	req ViewTreesRequest

	binding binding
	whole   *checkout.Tree
	ref     events.Ref
	commit  object.ID
	kind    string
	objects *object.Store // of all store generations
	tree    object.ID     // of the commit
	modes   checkout.FileModes

	mu    sync.Mutex          // guards the rest while trees are built
	new   map[string]string   // names of trees by view
	made  map[string][]string // new files of the new trees, by name
	files int                 // number of files in the new trees
}

func (p *viewPublisher) close() {
	if p.objects != nil {
		p.objects.Close()
	}
	_ = os.RemoveAll(p.building()) // otherwise GC removes it
}

// building is the folder in which trees are built.
func (p *viewPublisher) building() string { return p.f.views().build(p.req.Fence) }

func (p *viewPublisher) run(ctx context.Context) (err error) {
	if p.binding, _, err = p.f.readBinding(); err != nil {
		return err
	}
	var due []viewLinks
	for _, name := range p.names() {
		l, err := viewLinksAt(p.f, p.binding, name, p.req.App)
		if err != nil {
			return err
		}
		if l.Tree != path.Base(p.req.Tree) || !l.areOf(p.v, p.binding, p.req.Views) {
			due = append(due, l)
		}
	}
	if len(due) == 0 {
		return nil
	}
	slot := slot{slots: p.v.cfg.Slots, began: true}
	if err := slot.take(ctx, nil); err != nil {
		return err
	}
	defer slot.leave()
	if err := p.open(); err != nil {
		return err
	}
	for _, l := range due {
		if err := p.publish(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// names returns the published names whose views are to be published: a default branch may have two.
func (p *viewPublisher) names() []string {
	names := []string{p.req.Path}
	if ref, err := builtFor(checkout.GitDirOf(p.f.tree(path.Base(p.req.Tree)))); err == nil &&
		p.req.Path == p.binding.Repo.String() {
		l := viewLinks{suffix: ref.Suffix(), app: p.req.App}
		if _, err := os.Lstat(l.file(p.f)); err == nil {
			names = append(names, p.req.Path+"@"+l.suffix)
		}
	}
	return names
}

// open opens the whole tree and its commit.
func (p *viewPublisher) open() error {
	g := checkout.GitDirOf(p.f.tree(path.Base(p.req.Tree)))
	p.whole = checkout.OpenTree(p.f.tree(path.Base(p.req.Tree)), g.Links())
	var err error
	if p.ref, err = builtFor(g); err != nil || p.whole == nil || !p.whole.IsReadable() {
		return errDamagedWhole
	}
	if p.objects, err = p.f.openStores(); err != nil {
		return err
	}
	p.commit = object.ParseID(g.BuiltFrom())
	var ok bool
	if p.tree, ok = p.objects.TreeOf(p.commit); !ok {
		return object.Corruptf("commit %s is not in the store", p.commit)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", p.whole.Large(), g.Links(), p.whole.Parts()))
	p.kind = hex.EncodeToString(sum[:8])
	p.new, p.made = map[string]string{}, map[string][]string{}
	return nil
}

var errDamagedWhole = object.Corruptf("the published tree is damaged; it will be replaced")

// publish publishes the views of one published name.
func (p *viewPublisher) publish(ctx context.Context, l viewLinks) error {
	now, err := l.trees(p.v, p.f, p.binding)
	if err != nil {
		return err
	}
	dir := l.folder(p.v, p.binding)
	for name := range p.req.Views.All() {
		if now[filepath.Join(dir, name)] == "" && l.Views == p.req.Views.Digest() { // deleted by hand
			l.Tree = ""
		}
	}
	changed, err := p.changedSince(ctx, l)
	if err != nil {
		return err
	}
	if err := p.build(ctx, changed); err != nil {
		return err
	}
	p.v.done("views built")
	gone := maps.Clone(now) // the links to remove
	links := map[string]string{}
	for name := range p.req.Views.All() {
		delete(gone, filepath.Join(dir, name))
	}
	for _, name := range changed {
		if at, tree := filepath.Join(dir, name), p.new[name]; tree != now[at] {
			links[at] = tree
		}
	}
	for at := range links {
		if info, err := os.Lstat(at); err == nil && info.Mode().Type() != os.ModeSymlink {
			return conflict("%s is not a link of Lockstep; move it away, so that the view can be published there",
				p.v.relative(at))
		}
	}
	if len(links)+len(gone) > 0 {
		if err := p.v.confirm(ctx, p.req.Confirm); err != nil {
			return err
		}
	}
	err = p.f.guarded(ctx, p.req.Fence, func() error { return p.flip(l, links, gone) })
	if err == nil {
		p.v.done("views flipped")
	}
	return err
}

// changedSince returns the sorted names of the views that may have other trees than those that they link to.
func (p *viewPublisher) changedSince(ctx context.Context, l viewLinks) ([]string, error) {
	var all []string
	for name := range p.req.Views.All() {
		all = append(all, name)
	}
	before, known := object.ZeroID, false
	if l.Tree != "" && l.Views == p.req.Views.Digest() && l.Kind == p.kind && l.Commit != p.commit.String() {
		before, known = p.objects.TreeOf(object.ParseID(l.Commit))
	}
	if !known {
		return all, nil
	}
	diff, err := checkout.NewDiff(ctx, p.objects, before, p.tree, checkout.Parts{}, p.v.cfg.MaxTreeFiles)
	if events.ClassOf(err) == events.ClassCorrupt && ctx.Err() == nil { // some of its folders are gone
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	paths := diff.Paths()
	if p.whole.Links() == checkout.LinksSkip || !p.whole.IsPlain() && slices.ContainsFunc(paths, lfs.MayDecide) {
		return all, nil
	}
	matches, err := p.req.Views.Match(paths)
	if err != nil {
		return nil, tooComplex(err)
	}
	return matches.Views(), nil
}
