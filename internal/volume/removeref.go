package volume

import (
	"cmp"
	"context"
	"fmt"

	"lockstep/events"
	"lockstep/internal/git/wire"
)

// RemoveRefRequest asks that one ref of a repository be taken off the volume.
type RemoveRefRequest struct {
	Repo  events.RepoPath
	URL   string // the remote to ask; empty for the one bound
	Ref   events.Ref
	Auth  wire.Auth // for this operation alone; zero is anonymous
	Fence uint64    // of the lease held on Repo; above zero
	Force bool      // do not ask the remote
	Plain bool      // take the plain name off too, if it is published for Ref

	Foreign bool // as in [SyncRequest]

	// Confirm is as in [SyncRequest].
	Confirm func(context.Context) error
}

// RemoveRef takes {owner}/{name}@{ref} off the volume. Unless forced it asks the remote, and refuses while that has
// the ref or does not let it be known. The tree stays for its grace, and for readers that have it pinned; objects
// that only the ref needed go when they are pruned. It reports false when nothing was published for the ref. What the
// plain name is published for stays, unless the request says so: a name is not taken from readers because a branch
// was renamed.
func (v *Volume) RemoveRef(ctx context.Context, req RemoveRefRequest) (removed bool, err error) {
	if err := v.checkRequest(req.Repo, req.Fence); err != nil {
		return false, err
	}
	f := v.folder(req.Repo)
	removed, err = v.removeRef(ctx, f, req)
	v.janitor.add(f)
	if err != nil {
		return false, fmt.Errorf("remove %s of %s: %w", refText(req.Ref), req.Repo, f.explain(ctx, req.Fence, err))
	}
	return removed, nil
}

func refText(ref events.Ref) string {
	if ref.IsZero() {
		return "the default branch"
	}
	return ref.String()
}

func (v *Volume) removeRef(ctx context.Context, f folder, req RemoveRefRequest) (bool, error) {
	if err := f.record(ctx, req.Fence); err != nil {
		return false, err
	}
	v.done("fenced")
	b, bound, err := f.readBinding()
	if err != nil || !bound {
		return false, err
	}
	if req.URL != "" {
		if err := b.check(req.URL); err != nil {
			return false, err
		}
	}
	plainFor := cmp.Or(v.current(f, b, b.Repo.String()).ref, b.Default.String()) // a damaged tree does not say
	plain := plainFor == req.Ref.String()
	if req.Ref.IsZero() || plain && !req.Plain {
		return false, conflict("%s is what the plain name is published for; it stays until another default branch is published", refText(req.Ref))
	}
	names := []string{b.Repo.String() + "@" + req.Ref.Suffix()}
	if plain {
		names = append(names, b.Repo.String())
	}
	var published []string
	for _, name := range names {
		path := v.publishedPath(name)
		if tree := v.linkedTree(f, path); tree != "" && !b.MovedAway.covers(tree) {
			published = append(published, path)
		}
	}
	held, err := f.hasRef(req.Ref)
	if err != nil || len(published) == 0 && !held {
		return false, err
	}
	if err := v.checkRefGone(ctx, b, req); err != nil {
		return false, err
	}
	v.done("listed")
	if req.Confirm != nil {
		if err := req.Confirm(ctx); err != nil {
			return false, fmt.Errorf("confirm the lease: %w", err)
		}
	}
	v.done("confirmed")
	err = f.guarded(ctx, req.Fence, func() error { return v.unpublishRef(f, req.Ref, published) })
	if err != nil {
		return false, err
	}
	v.done("unpublished")
	// The name is gone, whatever becomes of the tree: the next holder tidies again.
	s := &syncer{v: v, f: f, req: SyncRequest{Repo: req.Repo, Fence: req.Fence}, binding: b}
	_ = s.tidy(ctx)
	v.done("retired")
	return len(published) > 0, nil
}

// checkRefGone returns nil when the remote says that it has no such ref, or no such repository.
func (v *Volume) checkRefGone(ctx context.Context, b binding, req RemoveRefRequest) error {
	if req.Force {
		return nil
	}
	url := req.URL
	if url == "" {
		url = b.Remote
	}
	r, err := v.net.DialAndList(ctx, url, req.Auth, req.Foreign, v.cfg.wireLimits())
	if events.ClassOf(err) == events.ClassNotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask whether the remote still has %s: %w", req.Ref, err)
	}
	defer r.Close()
	if r.Has(req.Ref) {
		return conflict("the remote still has %s; publish the removal with force to remove it anyway", req.Ref)
	}
	return nil
}

// unpublishRef has the store forget the ref before the names go: after a crash between the two a name tells
// that there is something left to do. The caller holds the file lock.
func (v *Volume) unpublishRef(f folder, ref events.Ref, published []string) error {
	s, err := f.currentStore()
	if err != nil {
		return err
	}
	if err := s.dropRef(ref); err != nil {
		return err
	}
	for _, path := range published {
		if err := unpublish(path); err != nil {
			return err
		}
	}
	return nil
}

// holds reports whether the repository's store holds a commit for a ref.
func (f folder) hasRef(ref events.Ref) (bool, error) {
	s, err := f.currentStore()
	if err != nil {
		return false, err
	}
	refs, err := s.refs()
	_, ok := refs[ref.String()]
	return ok, err
}

// letGo has the store hold a commit for a ref no longer. How shallow it is it notes with the next commit. The
// caller holds the file lock.
func (s store) dropRef(ref events.Ref) error {
	refs, err := s.refs()
	if err != nil {
		return err
	}
	if _, ok := refs[ref.String()]; !ok {
		return nil
	}
	delete(refs, ref.String())
	return s.writeRefs(refs)
}
