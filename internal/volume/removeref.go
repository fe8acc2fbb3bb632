package volume

import (
	"cmp"
	"context"
	"path"
	"slices"

	"lockstep/events"
)

// RemoveRef removes {owner}/{name}@{ref}. Unless forced, it first checks with the remote, and fails if the
// ref still exists there or its state is unknown. The tree stays for its grace and while pinned; objects that
// only the ref needed are pruned later. It returns false if the ref was not published. It fails for the ref
// of the plain name unless req.Plain is set, so that renaming a branch does not break readers. Without a ref,
// it removes the plain name alone.
func (v *Volume) RemoveRef(ctx context.Context, req RemoveRequest) (removed bool, err error) {
	return v.runRemoval(ctx, req, refText(req.Ref)+" of "+req.Repo.String(), v.removeRef)
}

func refText(ref events.Ref) string { return cmp.Or(ref.String(), "the default branch") }

func (v *Volume) removeRef(ctx context.Context, f folder, b binding, req RemoveRequest) (bool, error) {
	var names []string
	if !req.Ref.IsZero() {
		names = append(names, b.Repo.String()+"@"+req.Ref.Suffix())
	}
	plainFor := cmp.Or(v.current(f, b, b.Repo.String()).ref, b.Default.String()) // a damaged tree has no ref
	isPlain := req.Ref.IsZero() || plainFor == req.Ref.String()
	switch {
	case isPlain && !req.Plain:
		return false, conflict("%s is what the plain name is published for; it stays until another default branch "+
			"is published", refText(req.Ref))
	case isPlain:
		names = append(names, b.Repo.String())
	}
	var published, trees []string
	for _, name := range names {
		path := v.publishedPath(name)
		if tree := v.linkedTree(f, path); tree != "" && !b.MovedAway.covers(tree) {
			published, trees = append(published, path), append(trees, tree)
		}
	}
	subtrees, err := v.ownSubtreeLinks(f, b, func(dir string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return path.Dir(dir) == subtreesOf(name) })
	})
	if err != nil {
		return false, err
	}
	s, err := f.currentStore(b.MovedAway)
	if err != nil {
		return false, err
	}
	refs, err := s.refs()
	if _, held := refs[req.Ref.String()]; err != nil || len(published)+len(subtrees) == 0 && !held {
		return false, err
	}
	if err := v.checkGone(ctx, req); err != nil {
		return false, err
	}
	err = f.guarded(ctx, req.Fence, func() error {
		// First those that nothing shows any more once the whole names, or the default branch, are gone.
		if err := v.unpublishSubtrees(f, subtrees); err != nil {
			return err
		}
		if isPlain && !b.Default.IsZero() { // or else its next sync would publish the plain name again
			b.Default = events.Ref{}
			if err := f.writeBinding(b); err != nil {
				return err
			}
		}
		return s.unpublishRef(req.Ref, published)
	})
	if err != nil {
		return false, err
	}
	v.done("unpublished")
	// The name is removed, so errors from here on are non-critical: the next holder cleans up.
	_ = (&holder{v: v, f: f, fence: req.Fence, binding: b}).retireReplaced(ctx, trees)
	v.done("retired")
	return len(published)+len(subtrees) > 0, nil
}

// unpublishRef drops a ref from the store before it removes the names: after a crash, the names show that work remains.
// The next hold updates the shallow commits. The caller holds the file lock.
func (s store) unpublishRef(ref events.Ref, published []string) error {
	refs, err := s.refs()
	if err != nil {
		return err
	}
	if _, held := refs[ref.String()]; held {
		delete(refs, ref.String())
		if err := s.writeRefs(refs); err != nil {
			return err
		}
	}
	return unpublish(published...)
}
