package volume

import (
	"cmp"
	"context"
	"slices"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

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
	ref, _ := builtFor(g)
	p.result.Published = append(p.result.Published, PurgePublication{
		Name: p.v.relative(path), Ref: ref.String(), Commit: g.BuiltFrom(), Part: part,
	})
}
