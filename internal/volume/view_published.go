package volume

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/view"
)

// ViewsPublished reports whether [Volume.PublishViews] has nothing to do for what is published for a ref now.
// isDefault says whether the ref has the plain name. It needs no lease.
func (v *Volume) ViewsPublished(
	repo events.RepoPath, app string, ref events.Ref, isDefault bool, views *view.Set,
) (bool, error) {
	f := v.folder(repo)
	b, bound, err := f.readBinding()
	if err != nil || !bound {
		return false, err
	}
	name := b.Repo.String()
	if !isDefault {
		name += "@" + ref.Suffix()
	}
	l, err := viewLinksAt(f, b, name, app)
	if err != nil || l.Tree == "" || l.Tree != v.linkedTree(f, v.publishedPath(name)) {
		return false, err
	}
	return l.areOf(v, b, views), nil
}

// DamagedViews returns the sorted names of the views of an app, published below a name, whose trees are
// marked as damaged or missing. [Volume.PublishViews] replaces them.
func (v *Volume) DamagedViews(repo events.RepoPath, app, name string) (views []string, err error) {
	f := v.folder(repo)
	b, _, err := f.readBinding()
	if err != nil {
		return nil, err
	}
	l, err := viewLinksAt(f, b, name, app)
	if err != nil || l.Tree != "" { // no damage was found since they were published
		return nil, err
	}
	links, err := l.trees(v, f, b)
	for _, at := range slices.Sorted(maps.Keys(links)) {
		if _, err := os.Lstat(checkout.GitDirOf(f.views().tree(links[at])).Ref()); errors.Is(err, os.ErrNotExist) {
			views = append(views, filepath.Base(at))
		}
	}
	return views, err
}

// ViewsWanted reports whether an app wants trees of its views of a ref. isDefault says whether the ref has
// the plain name.
type ViewsWanted func(app string, ref events.Ref, isDefault bool) bool

// UnpublishViews removes the names of the views that are no longer wanted. The caller holds the lease.
func (v *Volume) UnpublishViews(ctx context.Context, repo events.RepoPath, fence uint64, wanted ViewsWanted) error {
	f := v.folder(repo)
	if _, err := os.Lstat(f.viewLinks()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	b, bound, err := f.readBinding()
	if err != nil || !bound {
		return err
	}
	unwanted := func(l viewLinks) bool {
		ref, err := l.ref()
		plain := v.current(f, b, b.Repo.String()).ref
		switch {
		case l.isOf(b.MovedAway, bound) || err != nil || ref.IsZero() && plain == "": // keeps its grace, or is not known
			return false
		case ref.IsZero():
			ref, err = events.ParseRef(plain)
			return err == nil && !wanted(l.app, ref, true)
		}
		return !wanted(l.app, ref, ref.String() == plain)
	}
	all, err := v.allViewLinks(f, b)
	if err != nil || !slices.ContainsFunc(all, unwanted) {
		return err
	}
	return f.guarded(ctx, fence, func() error { return v.unpublishViews(f, b, unwanted) })
}

// ViewTrees returns the trees of published views, relative to the root.
func (v *Volume) ViewTrees(repo events.RepoPath, path, app string, views []string) (map[string]string, error) {
	w, trees := v.folder(repo).views(), map[string]string{}
	for _, name := range views {
		tree, err := v.readLink(w, v.publishedPath(ViewPath(path, app, name)))
		if err == nil && tree == "" {
			err = errors.New("it is not published")
		}
		if err != nil {
			return nil, disk.Error("read the view "+name, err)
		}
		trees[name] = v.relative(w.tree(tree))
	}
	return trees, nil
}
