package volume

import (
	"cmp"
	"context"
	"fmt"

	"lockstep/events"
	"lockstep/internal/git/wire"
)

// RemoveRefRequest is a request to remove one ref of a repository from the volume.
type RemoveRefRequest struct {
	Repo  events.RepoPath
	URL   string // the remote; defaults to the bound one
	Ref   events.Ref
	Auth  wire.Auth // used only for this operation; zero is anonymous
	Fence uint64    // fence of the lease on Repo; above zero
	Force bool      // skip the check with the remote
	Plain bool      // also remove the plain name if it is published for Ref

	Foreign bool // as in [SyncRequest]

	// Confirm is as in [SyncRequest].
	Confirm func(context.Context) error
}

// RemoveRef removes {owner}/{name}@{ref}. Unless forced, it first checks with the remote, and fails if the ref still exists
// there or its state is unknown. The tree stays for its grace and while pinned; objects that only the ref needed are
// pruned later. It returns false if the ref was not published. It fails for the ref of the plain name unless
// req.Plain is set, so that renaming a branch does not break readers.
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
	plainFor := cmp.Or(v.current(f, b, b.Repo.String()).ref, b.Default.String()) // a damaged tree has no ref
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
	// The name is removed, so errors from here on are non-critical: the next holder cleans up.
	s := &syncer{v: v, f: f, req: SyncRequest{Repo: req.Repo, Fence: req.Fence}, binding: b}
	_ = s.tidy(ctx)
	v.done("retired")
	return len(published) > 0, nil
}

// checkRefGone returns nil if the remote no longer has the ref or the repository.
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
		return fmt.Errorf("check whether the remote still has %s: %w", req.Ref, err)
	}
	defer r.Close()
	if r.Has(req.Ref) {
		return conflict("the remote still has %s; publish the removal with force to remove it anyway", req.Ref)
	}
	return nil
}

// unpublishRef drops the ref from the store before it removes the names: after a crash, the names show that work remains.
// The caller holds the file lock.
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

// hasRef reports whether the store has a commit for a ref.
func (f folder) hasRef(ref events.Ref) (bool, error) {
	s, err := f.currentStore()
	if err != nil {
		return false, err
	}
	refs, err := s.refs()
	_, ok := refs[ref.String()]
	return ok, err
}

// dropRef removes a ref from the store. The next hold updates the shallow commits. The caller holds the file lock.
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
