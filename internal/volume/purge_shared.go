package volume

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// share finds the files that the commit introduced and whose content stays, because a kept commit has it too.
func (p *purge) share(ctx context.Context) error {
	commit, err := p.objects.Commit(p.commit)
	if errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrNoCommit) {
		return nil
	}
	if err != nil {
		return object.Corruptf("read the commit: %w", err)
	}
	p.result.Known = true
	old := map[object.ID]bool{}
	for _, parent := range commit.ParentHashes {
		tree, ok := p.objects.TreeOf(parent)
		if !ok {
			p.result.Known = false
			continue
		}
		if err := p.walk(ctx, tree, "", old, nil); err != nil {
			return err
		}
	}
	var shared []SharedFile
	err = p.walk(ctx, commit.TreeHash, "", old, func(name string, blob object.ID) {
		if p.needed[blob] != byNone {
			shared = append(shared, SharedFile{Path: name, Blob: blob.String()})
		}
	})
	if err != nil {
		return err
	}
	p.result.SharedCount = len(shared)
	p.result.Shared = shared[:min(len(shared), maxShared)]
	return p.locate(ctx)
}

// locate finds published files with the content of the shared ones.
func (p *purge) locate(ctx context.Context) error {
	wanted := map[object.ID][]int{}
	for i, file := range p.result.Shared {
		id := object.ParseID(file.Blob)
		wanted[id] = append(wanted[id], i)
	}
	for _, name := range slices.Sorted(maps.Keys(p.links)) {
		if len(wanted) == 0 {
			return nil
		}
		tree, ok := p.objects.TreeOf(object.ParseID(checkout.GitDirOf(p.f.tree(p.links[name])).BuiltFrom()))
		if !ok || p.affected[p.links[name]] {
			continue
		}
		err := p.walk(ctx, tree, "", map[object.ID]bool{}, func(file string, blob object.ID) {
			for _, i := range wanted[blob] {
				p.result.Shared[i].In = p.v.relative(name) + ": " + file
			}
			delete(wanted, blob)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// walk calls visit for each file in a tree that is not in seen yet, and adds all it reads to seen. It skips missing objects.
func (p *purge) walk(ctx context.Context, tree object.ID, at string, seen map[object.ID]bool, visit func(name string, blob object.ID)) error {
	if seen[tree] {
		return nil
	}
	seen[tree] = true
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	entries, err := p.objects.Tree(tree)
	if errors.Is(err, object.ErrNotFound) {
		return nil
	}
	if err != nil {
		return object.Corruptf("read a tree: %w", err)
	}
	for _, e := range entries {
		name := path.Join(at, e.Name)
		switch {
		case e.Mode == filemode.Submodule:
		case e.Mode == filemode.Dir:
			if err := p.walk(ctx, e.Hash, name, seen, visit); err != nil {
				return err
			}
		case visit == nil:
			seen[e.Hash] = true
		case !seen[e.Hash]:
			visit(name, e.Hash)
		}
	}
	return nil
}
