package volume

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
	"lockstep/internal/git/wire"
)

// MoveRequest is a request to move a repository that was renamed on its forge or transferred to another owner.
type MoveRequest struct {
	From, To events.RepoPath
	Remote            // the new one
	Former   []Remote // to compare with the new one: each way to reach that of the clone, or those of the watches
	Fence    uint64   // fence of the lease on From; above zero
	ToFence  uint64   // fence of the lease on To; may be 0 if the paths differ only in case
	ToSynced bool     // To was synced under its own name: its refs stay, as its watches' rules apply to them

	// Bring is called once To is complete, before From is free for another repository, to move what is kept elsewhere,
	// such as watches. A repeated request calls it again, unless another repository is at From by now. Optional.
	Bring func(context.Context) error

	// Confirm is as in [SyncRequest], for both leases.
	Confirm func(context.Context) error
}

// Remote is a remote, with what is used for it in one operation only: credentials must not be shared between remotes.
type Remote struct {
	URL     string
	Auth    wire.Auth    // zero is anonymous
	Foreign bool         // as in [SyncRequest]
	Limiter wire.Limiter // as in [SyncRequest]
	Unseen  bool         // of a former one: Auth lacks the credential, so that it may exist although it is not found
}

// Move moves the repository at From to To without fetching it again, and binds To to the new remote. It
// hard-links the stores, and publishes what is published at From, with the same files. The names of From stay
// published for [Config].Grace, until [Volume.GC] removes them; meanwhile another repository may be synced
// there. The next sync of To fetches whatever is missing or damaged. If there is nothing at From, Move only compares
// the remotes.
//
// Move lists the refs of the remotes. They are the same repository if each former one is not found or lists the
// same branches and tags, or if only the new one lists a commit that is published at From. If To is already
// on the volume with the same remote, what was published there later stays, or all of it if To was synced; another
// remote is a conflict. Repeating the request completes a failed move. After a completed one, it moves what is at From
// by now with the same proof. Without it, another repository is there, and Move does nothing.
func (v *Volume) Move(ctx context.Context, req MoveRequest) error {
	if req.From.Equal(req.To) {
		req.Fence = max(req.Fence, req.ToFence)
		req.ToFence = req.Fence
	}
	if err := cmp.Or(v.checkRequest(req.From, req.Fence), v.checkRequest(req.To, req.ToFence)); err != nil {
		return err
	}
	m := &mover{v: v, from: v.folder(req.From), to: v.folder(req.To), req: req, stores: map[int]store{}}
	err := m.run(ctx)
	_ = os.RemoveAll(m.to.quarantine(req.ToFence))
	v.janitor.add(m.from)
	v.janitor.add(m.to)
	if err != nil {
		_ = os.RemoveAll(m.to.build(req.ToFence))
		err = m.to.explain(ctx, req.ToFence, m.from.explain(ctx, req.Fence, err))
		return fmt.Errorf("move %s to %s: %w", req.From, req.To, err)
	}
	return nil
}

// mover is the state of one Move.
type mover struct {
	v        *Volume
	from, to folder
	req      MoveRequest

	old       binding       // of From
	hasMoved  bool          // whether an earlier request moved From to To; another repository may be at From by now
	here      bool          // whether there is something to move at From
	published Published     // at From
	binding   binding       // of To
	stores    map[int]store // at To, by generation at From
}

func (m *mover) run(ctx context.Context) error {
	if err := cmp.Or(m.from.record(ctx, m.req.Fence), m.to.record(ctx, m.req.ToFence)); err != nil {
		return err
	}
	m.v.done("fenced")
	if err := m.begin(); err != nil {
		return err
	}
	err := m.prove(ctx)
	if m.hasMoved && events.ClassOf(err) == events.ClassConflict && events.DispositionOf(err) == events.Permanent {
		return nil // what is cloned or watched at From by now is another repository
	}
	if err != nil {
		return err
	}
	m.v.done("listed")
	switch {
	case !m.here:
		return m.leave(ctx, func() error { return nil })
	case m.from == m.to: // the names keep their first spelling
		return m.leave(ctx, m.rebind)
	}
	if err := m.arrive(ctx); err != nil {
		return err
	}
	return m.leave(ctx, m.markMovedAway)
}

// arrive completes To.
func (m *mover) arrive(ctx context.Context) (err error) {
	if m.binding, err = m.v.bind(ctx, m.to, m.req.To, m.req.URL, m.req.ToFence); err != nil {
		return err
	}
	h := holder{v: m.v, f: m.to, fence: m.req.ToFence, binding: m.binding}
	if err := h.tidy(ctx); err != nil {
		return err
	}
	m.v.done("bound")
	if err := m.carry(ctx); err != nil {
		return err
	}
	if err := m.publish(ctx); err != nil {
		return err
	}
	m.v.done("published")
	return nil
}

// begin reads what is at From, and fails if the move is invalid regardless of the remotes.
func (m *mover) begin() (err error) {
	if err := checkURL(m.req.URL); err != nil {
		return err
	}
	if m.old, _, err = m.from.readBinding(); err != nil {
		return err
	}
	if m.to != m.from {
		_, bound, err := m.v.checkBound(m.to, m.req.URL)
		if err != nil {
			return err
		}
		left := m.old.MovedAway
		m.hasMoved = bound && left != nil && left.To.Equal(m.req.To)
	}
	if m.published, m.here, err = m.v.Published(m.req.From); err != nil {
		return err
	}
	m.here = m.here && (m.published.Fetched || !m.hasMoved) // a failed sync may have bound From after the move
	if m.here && (m.req.From.Contains(m.req.To) || m.req.To.Contains(m.req.From)) {
		return conflict("%s and %s cannot exist side by side, which is necessary until the old name's grace "+
			"ends; give the new one another path",
			m.req.From, m.req.To)
	}
	return nil
}

// publish publishes at To what is published at From, except refs that To has published later, or from its own syncs.
// It skips damaged trees: the next sync of To fetches them.
func (m *mover) publish(ctx context.Context) error {
	there, _, err := m.v.Published(m.req.To)
	if err != nil {
		return err
	}
	refs := slices.DeleteFunc(slices.Collect(maps.Keys(m.published.Commits)), func(ref events.Ref) bool {
		at, taken := there.Changed[ref]
		return taken && (m.req.ToSynced || !m.published.Changed[ref].After(at))
	})
	var tips []tip
	for _, ref := range refs {
		commit := object.ParseID(m.published.Commits[ref])
		isDefault := ref == m.published.Plain && (there.Plain.IsZero() || there.Plain == ref)
		tips = append(tips, tip{wire.Tip{Ref: ref.String(), IsDefault: isDefault, Want: commit, Commit: commit}, ref})
	}
	for _, t := range tips { // before any is published
		if err := m.v.checkNames(m.to, m.binding, m.names(t)); err != nil {
			return err
		}
	}
	if len(refs) > 0 || len(there.Commits) == 0 {
		if err := m.linkStores(ctx, refs); err != nil {
			return err
		}
	}
	m.v.done("linked")
	for _, t := range tips {
		err := m.publishRef(ctx, t)
		if err != nil && (events.ClassOf(err) != events.ClassCorrupt || ctx.Err() != nil) {
			return err
		}
	}
	return nil
}

// names returns the names to publish a ref under at To: also the default branch may have one of its own.
func (m *mover) names(t tip) []string {
	names, own := m.v.names(m.to, m.binding, t), m.binding.Repo.String()+"@"+t.Ref.Suffix()
	if m.published.Named[t.Ref] && !slices.Contains(names, own) {
		names = append(names, own)
	}
	return names
}

// publishRef publishes a ref at To as a sync does, but like the tree at From.
func (m *mover) publishRef(ctx context.Context, at tip) error {
	s := &syncer{builder: m.v.newBuilder(m.to, m.req.ToFence, nil), req: SyncRequest{Confirm: m.req.Confirm}}
	defer s.close()
	s.binding = m.binding
	t := s.aim(at)
	t.names = m.names(at)
	if err := s.takeSlot(ctx); err != nil {
		return err
	}
	tree := m.published.Trees[at.Ref]
	in, ok := m.stores[m.from.generationOf(tree)]
	if !ok {
		return object.Corruptf("the store of %s is missing", tree)
	}
	path := m.from.tree(tree)
	if err := s.planCopyFrom(ctx, path, checkout.OpenTree(path, m.v.cfg.Links), in); err != nil {
		return err
	}
	built, err := s.build(ctx)
	if err != nil {
		return err
	}
	m.v.done("built")
	if _, err := s.flip(ctx, t, built); err != nil {
		return err
	}
	m.binding = s.binding
	m.v.done("flipped")
	return nil
}

// leave moves what is kept elsewhere and changes the binding of From, once everything else is done. Bring has no fence.
func (m *mover) leave(ctx context.Context, change func() error) error {
	if err := m.v.confirm(ctx, m.req.Confirm); err != nil {
		return err
	}
	if err := cmp.Or(m.from.checkFence(m.req.Fence), m.to.checkFence(m.req.ToFence)); err != nil {
		return err
	}
	if m.req.Bring != nil {
		if err := m.req.Bring(ctx); err != nil {
			return err
		}
	}
	if err := m.from.guarded(ctx, m.req.Fence, change); err != nil {
		return err
	}
	m.v.done("left")
	return nil
}

// rebind binds From to the new remote. The caller holds the file lock.
func (m *mover) rebind() error {
	rebound := m.old
	rebound.Remote = m.req.URL
	return m.from.writeBinding(rebound)
}

// markMovedAway frees From for another repository, atomically. The caller holds the file lock.
func (m *mover) markMovedAway() error {
	// To has links. The usage counts what it shares with To.
	if err := m.from.discardAt(append(m.from.carried(), m.from.usage())); err != nil {
		return err
	}
	return m.from.markMovedAway(m.old, m.req.To, m.req.Fence)
}
