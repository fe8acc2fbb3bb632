package checkout

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/git/object"
)

// Submodules returns the commits of the tree's own submodules by path. It must be called before SetParts.
func (p *Plan) Submodules() (map[string]object.ID, error) {
	commits := map[string]object.ID{}
	if p.incremental {
		last, err := p.last.read()
		if err != nil {
			return nil, object.Corruptf("read the last tree: %w", err)
		}
		for _, t := range last {
			if t.mode == filemode.Submodule && !t.inPart {
				commits[t.path] = t.hash
			}
		}
	}
	for _, d := range p.own {
		delete(commits, d.path)
		if d.after.mode == filemode.Submodule {
			commits[d.path] = d.after.hash
		}
	}
	return commits, nil
}

// SetParts adds the files of submodules, whose commits are in objects, to the plan, and removes those that
// the last tree has beyond them. The limit applies to all files together. It must be called before SetLarge.
// The plan is not usable after an error.
func (p *Plan) SetParts(ctx context.Context, objects *object.Store, parts Parts, limit int) (err error) {
	defer object.RecoverCorrupt(&err)
	after := parts.filled()
	p.parts, p.filled = parts, map[string]bool{}
	for path := range after {
		p.filled[path] = true
	}
	found, size, err := p.changesOfParts(ctx, objects, after, limit)
	if err != nil {
		return fmt.Errorf("read the submodules of %s: %w", p.Commit, err)
	}
	if size+growth(found) > limit {
		return TooManyFiles(limit)
	}
	p.changed = mergeDifferences(p.own, found)
	return nil
}

// changesOfParts returns how the files of submodules differ from the last tree, or all of them if the plan is
// not incremental or can no longer be. size is the number of files that this is relative to.
func (p *Plan) changesOfParts(
	ctx context.Context, objects *object.Store, after map[string]object.ID, limit int,
) (found []difference, size int, err error) {
	if p.incremental {
		found, known, err := partDifferences(ctx, objects, p.last.Parts().filled(), after, limit)
		if err != nil {
			return nil, 0, err
		}
		// Changed files of submodules may be links, or change where others lead; see NewPlan.
		if known && (p.last.links == LinksKeep || len(found) == 0) {
			return found, p.size + p.last.inParts, checkPresent(objects, found)
		}
		p.incremental = false
		if p.own, err = differences(ctx, objects, object.ZeroID, p.tree, limit); err != nil {
			return nil, 0, err
		}
	}
	found, _, err = partDifferences(ctx, objects, nil, after, limit)
	if err != nil {
		return nil, 0, err
	}
	return found, p.size, checkPresent(objects, found)
}

// partDifferences lists the differences between the files of submodules, given by path and commit. known is
// false if a commit in before cannot be read.
func partDifferences(
	ctx context.Context, objects *object.Store, before, after map[string]object.ID, limit int,
) (found []difference, known bool, err error) {
	w := &walker{ctx: ctx, objects: objects, limit: limit, inPart: true}
	treeOf := func(commit object.ID) (tree object.ID, ok bool) {
		if commit.IsZero() {
			return object.ZeroID, true
		}
		return objects.TreeOf(commit)
	}
	paths := map[string]object.ID{}
	maps.Copy(paths, before)
	maps.Copy(paths, after)
	for path := range paths {
		was, now := before[path], after[path]
		if was == now {
			continue
		}
		from, ok := treeOf(was)
		if !ok {
			return nil, false, nil
		}
		to, ok := treeOf(now)
		if !ok {
			return nil, false, object.Corruptf("%s: commit %s is missing", path, now)
		}
		if err := w.compareBelow(path, from, to); err != nil {
			return nil, false, err
		}
	}
	return w.found, true, nil
}

// compareBelow compares two trees of a folder.
func (w *walker) compareBelow(folder string, before, after object.ID) error {
	return w.compare(before, after, folder+"/", strings.Count(folder, "/")+1)
}

// mergeDifferences merges the differences of a tree and of its submodules, sorted by path. At a path that
// belonged to one, and now belongs to the other, they are one difference.
func mergeDifferences(own, inParts []difference) []difference {
	if len(inParts) == 0 {
		return own
	}
	all := slices.Concat(own, inParts)
	slices.SortStableFunc(all, func(a, b difference) int { return cmp.Compare(a.path, b.path) })
	merged := all[:0]
	for _, d := range all {
		last := len(merged) - 1
		if last < 0 || merged[last].path != d.path {
			merged = append(merged, d)
			continue
		}
		m := &merged[last]
		if m.before.mode == 0 {
			m.before = d.before
		}
		if d.after.mode != 0 {
			m.after, m.inPart = d.after, d.inPart
		}
	}
	return merged
}
