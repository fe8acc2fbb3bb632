package volume

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"lockstep/events"
)

// RemoveRef removes {owner}/{name}@{ref}. Unless forced, it first checks with the remote, and fails if the
// ref still exists there or its state is unknown. The tree stays for its grace and while pinned; objects that
// only the ref needed are pruned later. It returns false if the ref was not published. It fails for the ref
// of the plain name unless req.Plain is set, so that renaming a branch does not break readers.
func (v *Volume) RemoveRef(ctx context.Context, req RemoveRequest) (removed bool, err error) {
	return v.runRemoval(ctx, req, refText(req.Ref)+" of "+req.Repo.String(), v.removeRef)
}

func refText(ref events.Ref) string { return cmp.Or(ref.String(), "the default branch") }

func (v *Volume) removeRef(ctx context.Context, f folder, b binding, req RemoveRequest) (bool, error) {
	names := []string{b.Repo.String() + "@" + req.Ref.Suffix()}
	plainFor := cmp.Or(v.current(f, b, b.Repo.String()).ref, b.Default.String()) // a damaged tree has no ref
	switch plain := plainFor == req.Ref.String(); {
	case req.Ref.IsZero() || plain && !req.Plain:
		return false, conflict("%s is what the plain name is published for; it stays until another default branch "+
			"is published", refText(req.Ref))
	case plain:
		names = append(names, b.Repo.String())
	}
	var published []string
	for _, name := range names {
		path := v.publishedPath(name)
		if tree := v.linkedTree(f, path); tree != "" && !b.MovedAway.covers(tree) {
			published = append(published, path)
		}
	}
	s, err := f.currentStore(b.MovedAway)
	if err != nil {
		return false, err
	}
	refs, err := s.refs()
	if _, held := refs[req.Ref.String()]; err != nil || len(published) == 0 && !held {
		return false, err
	}
	if err := v.checkGone(ctx, req); err != nil {
		return false, err
	}
	isOf := func(l viewLinks) bool {
		return !l.isOf(b.MovedAway, true) &&
			slices.Contains(published, strings.TrimSuffix(v.publishedPath(b.Repo.String()+"@"+l.suffix), "@"))
	}
	err = f.guarded(ctx, req.Fence, func() error {
		if err := v.unpublishViews(f, b, isOf); err != nil {
			return err
		}
		return s.unpublishRef(req.Ref, published)
	})
	if err != nil {
		return false, err
	}
	v.done("unpublished")
	// The name is removed, so errors from here on are non-critical: the next holder cleans up.
	_ = (&holder{v: v, f: f, fence: req.Fence, binding: b}).tidyNow(ctx)
	v.done("retired")
	return len(published) > 0, nil
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
	for _, path := range published {
		if err := unpublish(path); err != nil {
			return err
		}
	}
	return nil
}
