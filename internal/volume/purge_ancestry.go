package volume

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// ancestry describes the ancestors of a commit, including itself, as far as they are stored.
type ancestry uint8

const (
	isPurged   ancestry = 1 << iota // one of them is the purged commit
	isCut                           // one of them is missing
	isComplete                      // all have been visited
)

// has reports whether a tree is of the purged commit or of one that descends from it, or has one of these as a submodule, at the path
// part. unknown says that the history is cut.
func (p *purge) has(ctx context.Context, tree string) (has, unknown bool, part string, err error) {
	g := checkout.GitDirOf(p.f.tree(tree))
	parts, err := g.Parts()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, false, "", disk.Error("read the submodules of a tree", err)
	}
	for _, one := range parts.List {
		known, err := p.ancestors(ctx, one.Commit)
		if err != nil || known&isPurged != 0 {
			return true, false, one.Path, err
		}
	}
	commit := object.ParseID(g.BuiltFrom())
	if commit.IsZero() {
		return false, true, "", nil
	}
	known, err := p.ancestors(ctx, commit)
	return known&isPurged != 0, known&isCut != 0, "", err
}

// ancestors follows the history of a commit as far as it is stored, which may be further than a tree or the store shows it.
func (p *purge) ancestors(ctx context.Context, tip object.ID) (ancestry, error) {
	type visit struct {
		id      object.ID
		parents []object.ID
	}
	var path []visit
	enter := func(h object.ID) error {
		if h == p.commit {
			p.ancestry[h] = isPurged | isComplete
			return nil
		}
		commit, err := p.objects.Commit(h)
		switch {
		case errors.Is(err, object.ErrNotFound):
			p.ancestry[h] = isCut | isComplete
			return nil
		case err != nil:
			return object.Corruptf("read history: %w", err)
		}
		p.ancestry[h] = 0
		path = append(path, visit{h, slices.Clone(commit.ParentHashes)})
		return nil
	}
	if p.ancestry[tip]&isComplete == 0 {
		if err := enter(tip); err != nil {
			return 0, err
		}
	}
	for n := 0; len(path) > 0; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		top := &path[len(path)-1]
		if len(top.parents) == 0 {
			p.ancestry[top.id] |= isComplete
			path = path[:len(path)-1]
			continue
		}
		parent := top.parents[0]
		if known := p.ancestry[parent]; known&isComplete != 0 {
			p.ancestry[top.id] |= known
			top.parents = top.parents[1:]
		} else if err := enter(parent); err != nil {
			return 0, err
		}
	}
	return p.ancestry[tip], nil
}

// mark determines which objects are needed, and which ones of the purged commit and of those that descend from it are not.
func (p *purge) mark(ctx context.Context) error {
	m := &marker{ctx: ctx, objects: p.objects, parents: map[object.ID][]object.ID{}, needed: map[object.ID]need{}}
	if err := p.markRefs(ctx, m); err != nil {
		return err
	}
	p.parts, p.needed, p.doomed = map[string]object.ID{}, m.needed, map[object.ID]bool{}
	if err := p.markTrees(m, false); err != nil {
		return err
	}
	if err := p.share(ctx); err != nil {
		return err
	}
	if !p.req.DryRun { // then affected trees that are still there are pinned
		if err := p.markTrees(m, true); err != nil {
			return err
		}
	}
	lost := []object.ID{p.commit}
	for id, known := range p.ancestry {
		if known&isPurged != 0 && id != p.commit {
			lost = append(lost, id)
		}
	}
	for _, id := range lost {
		if err := p.addUnneeded(id); err != nil {
			return err
		}
	}
	p.result.Objects = len(p.doomed)
	return nil
}

// markRefs marks what the refs of the stores need, except those that have the commit: they are not published, and will be dropped.
func (p *purge) markRefs(ctx context.Context, m *marker) error {
	generations, err := p.f.generations()
	if err != nil {
		return err
	}
	for _, n := range generations {
		s := p.f.generation(n)
		kept, err := p.keptRefs(ctx, s)
		if err != nil {
			return err
		}
		if err := m.mark(distinct(kept), s.shallow(), byRefs); err != nil {
			return err
		}
	}
	return nil
}

// markTrees marks what the trees and their submodules need: those that have the commit, or the others.
func (p *purge) markTrees(m *marker, affected bool) error {
	trees, err := disk.ReadDir(p.f.trees())
	if err != nil {
		return disk.Error("list the trees", err)
	}
	for _, entry := range trees {
		if p.affected[entry.Name()] != affected {
			continue
		}
		g := checkout.GitDirOf(p.f.tree(entry.Name()))
		commit := object.ParseID(g.BuiltFrom()) // also of one that is marked as damaged: readers may use it
		if commit.IsZero() {
			continue
		}
		if err := m.mark([]object.ID{commit}, object.ReadShallow(g.Dir), byTrees); err != nil {
			return err
		}
		parts, err := g.Parts()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return disk.Error("read the submodules of a tree", err)
		}
		for _, part := range parts.Filled() {
			p.parts[p.f.part(part)] = part.Commit
		}
	}
	for dir, commit := range p.parts {
		if err := m.mark([]object.ID{commit}, store{dir}.shallow(), byTrees); err != nil {
			return err
		}
	}
	return nil
}

// keptRefs returns the refs of a store whose commits are there, do not have the purged one and, with Replaced, are published.
func (p *purge) keptRefs(ctx context.Context, s store) (kept map[string]object.ID, err error) {
	refs, err := s.refs()
	if err != nil {
		return nil, err
	}
	published := map[object.ID]bool{}
	for _, tree := range p.links {
		published[object.ParseID(checkout.GitDirOf(p.f.tree(tree)).BuiltFrom())] = true
	}
	kept = map[string]object.ID{}
	for name, commit := range refs {
		known, err := p.ancestors(ctx, commit)
		if err != nil {
			return nil, err
		}
		present, err := p.objects.Has(commit)
		if err != nil {
			return nil, object.Corruptf("read the store's refs: %w", err)
		}
		if present && known&isPurged == 0 && (!p.req.Replaced || published[commit]) {
			kept[name] = commit
		}
	}
	return kept, nil
}

// addUnneeded adds an unneeded object, and the objects in it, to those to delete.
func (p *purge) addUnneeded(h object.ID) error {
	if p.needed[h] != byNone || p.doomed[h] {
		return nil
	}
	kind, _, err := p.objects.Raw(h)
	switch {
	case errors.Is(err, object.ErrNotFound):
		return nil
	case errors.Is(err, object.ErrNoCommit), err == nil && kind != "commit" && kind != "tree": // a blob
		p.doomed[h] = true
		return nil
	case err != nil:
		return object.Corruptf("read what to delete: %w", err)
	}
	p.doomed[h] = true
	if kind == "commit" {
		commit, err := p.objects.Commit(h)
		if err != nil {
			return object.Corruptf("read what to delete: %w", err)
		}
		return p.addUnneeded(commit.TreeHash)
	}
	entries, err := p.objects.Tree(h)
	if err != nil {
		return object.Corruptf("read what to delete: %w", err)
	}
	for _, e := range entries {
		switch e.Mode {
		case filemode.Submodule:
		case filemode.Dir:
			err = p.addUnneeded(e.Hash)
		default:
			if present, failed := p.objects.Has(e.Hash); failed != nil {
				err = object.Corruptf("read what to delete: %w", failed)
			} else if present && p.needed[e.Hash] == byNone {
				p.doomed[e.Hash] = true
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
