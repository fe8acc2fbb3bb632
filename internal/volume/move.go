package volume

import (
	"context"
	"errors"
	"fmt"
	"os"

	"lockstep/events"
	"lockstep/internal/git/wire"
)

// MoveRequest is a request to move a repository that was renamed on its forge or transferred to another owner.
type MoveRequest struct {
	From, To events.RepoPath
	URL      string    // the new remote
	Auth     wire.Auth // for the new remote, used only for this operation; zero is anonymous
	OldAuth  wire.Auth // for the old remote, because credentials must not be shared between remotes
	Fence    uint64    // fence of the lease on From; above zero
	ToFence  uint64    // fence of the lease on To; may be 0 if the paths differ only in case

	Foreign bool // as in [SyncRequest]

	// Confirm is as in [SyncRequest], for both leases.
	Confirm func(context.Context) error

	Limiter wire.Limiter // as in [SyncRequest]
}

// MoveResult is the result of a [Volume.Move].
type MoveResult struct {
	Moved bool   // false if there was nothing at From
	Path  string // plain name, relative to the root; "" if not published
	Tree  string // the tree behind it, relative to the root
}

// Move moves the repository at From to To without fetching it again, and binds To to the new remote. It
// hard-links stores and files, gives each tree a new .git, and publishes the names of To once all of that is
// on disk. The names of From stay published for [Config].Grace, until [Volume.GC] removes them; meanwhile
// another repository may be synced there. The next sync of To fetches whatever is missing or damaged.
//
// Move lists the refs of both remotes. They are the same repository if the old one is not found or lists the
// same branches and tags, or if only the new one lists a commit that is published at From. If To is already
// on the volume with the same remote, its published names stay; another remote is a conflict. Repeating the
// request completes a failed move.
func (v *Volume) Move(ctx context.Context, req MoveRequest) (MoveResult, error) {
	onePath := req.From.Equal(req.To)
	if err := v.checkRequest(req.From, req.Fence); err != nil {
		return MoveResult{}, err
	}
	if err := v.checkRequest(req.To, max(req.ToFence, 1)); err != nil || req.ToFence == 0 && !onePath {
		return MoveResult{}, errors.Join(err, v.checkRequest(req.To, req.ToFence))
	}
	m := &mover{v: v, from: v.folder(req.From), to: v.folder(req.To), req: req}
	defer m.close()
	run := m.run
	if onePath {
		run = m.rename
	}
	res, err := run(ctx)
	v.janitor.add(m.from)
	v.janitor.add(m.to)
	if err != nil {
		m.discard()
		err = m.from.explain(ctx, req.Fence, err)
		if !onePath {
			err = m.to.explain(ctx, req.ToFence, err)
		}
		return MoveResult{}, fmt.Errorf("move %s to %s: %w", req.From, req.To, err)
	}
	return res, nil
}

// mover is the state of one Move.
type mover struct {
	v        *Volume
	from, to folder
	req      MoveRequest

	old   binding           // of From
	links map[string]string // published trees of From, by path
	at    *builder          // builds at To
	built map[string]string // new trees at To, by the name to publish
	views []movedViews
}

func (m *mover) run(ctx context.Context) (MoveResult, error) {
	if err := m.from.record(ctx, m.req.Fence); err != nil {
		return MoveResult{}, err
	}
	if err := m.to.record(ctx, m.req.ToFence); err != nil {
		return MoveResult{}, err
	}
	m.v.done("fenced")
	here, err := m.begin()
	switch {
	case err != nil:
		return MoveResult{}, err
	case !here:
		return MoveResult{Moved: m.hasMoved()}.withPublished(m.v, m.to), m.from.checkFence(m.req.Fence)
	}
	if err := m.checkSameRepo(ctx); err != nil {
		return MoveResult{}, err
	}
	m.v.done("listed")
	if err := m.bind(ctx); err != nil {
		return MoveResult{}, err
	}
	m.v.done("bound")
	if err := m.build(ctx); err != nil {
		return MoveResult{}, err
	}
	if err := m.copyListed(ctx); err != nil {
		return MoveResult{}, err
	}
	if err := m.v.confirm(ctx, m.req.Confirm); err != nil {
		return MoveResult{}, err
	}
	if err := m.to.guarded(ctx, m.req.ToFence, m.flip); err != nil {
		return MoveResult{}, err
	}
	m.v.done("flipped")
	markMoved := func() error {
		if err := m.from.discardExtras(); err != nil { // To has links
			return err
		}
		return m.from.markMovedAway(m.old, m.req.To, m.req.Fence)
	}
	if err := m.from.guarded(ctx, m.req.Fence, markMoved); err != nil {
		return MoveResult{}, err
	}
	m.v.done("left")
	m.noteUsage(ctx)
	m.v.done("noted")
	return MoveResult{Moved: true}.withPublished(m.v, m.to), nil
}

// begin reports whether there is a repository at From, and fails if the move is invalid regardless of the remote.
func (m *mover) begin() (here bool, err error) {
	if err := checkURL(m.req.URL); err != nil {
		return false, err
	}
	old, bound, err := m.from.readBinding()
	m.old = old
	if err != nil || !bound || m.hasMoved() {
		return false, err
	}
	if err := sameHost(old.Remote, m.req.URL); err != nil {
		return false, err
	}
	if m.req.From.Contains(m.req.To) || m.req.To.Contains(m.req.From) {
		return false, conflict("%s and %s cannot exist side by side, which is necessary until the old name's grace "+
			"ends; give the new one another path",
			m.req.From, m.req.To)
	}
	if m.to != m.from {
		if _, _, err := m.v.checkBound(m.to, m.req.URL); err != nil {
			return false, err
		}
	}
	m.links, err = m.v.ownLinks(m.from, old)
	return true, err
}

// hasMoved reports whether an earlier request moved From to To. Another repository may be at From by now.
func (m *mover) hasMoved() bool {
	left := m.old.MovedAway
	if left == nil || !left.To.Equal(m.req.To) {
		return false
	}
	b, bound, err := m.to.readBinding()
	return err == nil && bound && b.check(m.req.URL) == nil
}

// withPublished sets Path and Tree from the published plain name.
func (r MoveResult) withPublished(v *Volume, f folder) MoveResult {
	if !r.Moved {
		return r
	}
	b, _, err := f.readBinding()
	if err != nil {
		return r
	}
	if now := v.current(f, b, b.Repo.String()); now.tree != "" {
		r.Path, r.Tree = b.Repo.String(), v.relative(f.tree(now.tree))
	}
	return r
}

// bind binds To to the new remote and cleans up after crashed holders.
func (m *mover) bind(ctx context.Context) (err error) {
	at := m.v.newBuilder(m.to, m.req.ToFence, nil)
	m.at = &at
	if m.at.binding, err = m.v.bind(ctx, m.to, m.req.To, m.req.URL, m.req.ToFence); err != nil {
		return err
	}
	return m.at.tidy(ctx)
}

// flip publishes the built trees. The caller holds the file lock of To.
func (m *mover) flip() error {
	for name := range m.built {
		if err := m.v.checkName(m.to, name, m.at.binding.Remote); err != nil {
			return err
		}
	}
	built := m.built
	m.built = nil // they may be published from here on, so discard must not delete them
	for name, tree := range built {
		if err := m.v.flip(m.to, name, tree, m.req.ToFence); err != nil {
			return err
		}
		m.v.done("named")
	}
	if err := m.flipViews(); err != nil {
		return err
	}
	if b := &m.at.binding; b.Default.IsZero() && !m.old.Default.IsZero() {
		b.Default = m.old.Default
		return m.to.writeBinding(*b)
	}
	return nil
}

// rename handles a move that only changes case: the names keep their first spelling.
func (m *mover) rename(ctx context.Context) (MoveResult, error) {
	if err := m.from.record(ctx, max(m.req.Fence, m.req.ToFence)); err != nil {
		return MoveResult{}, err
	}
	m.v.done("fenced")
	if here, err := m.begin(); !here || err != nil {
		return MoveResult{}, err
	}
	if err := m.checkSameRepo(ctx); err != nil {
		return MoveResult{}, err
	}
	m.v.done("listed")
	if err := m.v.confirm(ctx, m.req.Confirm); err != nil {
		return MoveResult{}, err
	}
	rebind := func() error {
		b := m.old
		b.Remote = m.req.URL
		return m.from.writeBinding(b)
	}
	if err := m.from.guarded(ctx, max(m.req.Fence, m.req.ToFence), rebind); err != nil {
		return MoveResult{}, err
	}
	m.v.done("left")
	return MoveResult{Moved: true}.withPublished(m.v, m.from), nil
}

// noteUsage measures both folders. From's usage excludes the files that it shares with To.
func (m *mover) noteUsage(ctx context.Context) {
	for f, fence := range map[folder]uint64{m.to: m.req.ToFence, m.from: m.req.Fence} {
		if now, err := m.v.measure(ctx, f); err == nil {
			_ = f.guarded(ctx, fence, func() error { return f.writeUsage(now) }) // non-critical: the next GC measures again
		}
	}
}

// discard deletes the unpublished work of a failed move.
func (m *mover) discard() {
	for _, tree := range m.built {
		_ = os.RemoveAll(m.to.tree(tree))
	}
	_ = os.RemoveAll(m.to.build(m.req.ToFence))
}

func (m *mover) close() {
	if m.at != nil {
		m.at.close()
	}
}

// newName returns the name at To of a published path of From.
func (m *mover) newName(path string) string {
	return m.at.binding.Repo.String() + path[len(m.v.publishedPath(m.old.Repo.String())):]
}
