package gitrepo

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"

	"lockstep/events"
)

// deeper returns the one of two depths that covers the other.
func deeper(a, b events.Depth) events.Depth {
	if a.Covers(b) {
		return a
	}
	return b
}

// reachable follows the history of some commits down to where it is shallow, and returns which shallow
// commits it comes to. A commit that should have parents, and has not, is an error of ClassCorrupt. Those that
// are whole, down to commits without parents, are known to come to none.
func reachable(ctx context.Context, objects *objects, tips, shallow, whole []plumbing.Hash) (ends []plumbing.Hash, err error) {
	defer recoverCorrupt(&err)
	cut := make(map[plumbing.Hash]bool, len(shallow))
	for _, h := range shallow {
		cut[h] = true
	}
	seen := make(map[plumbing.Hash]bool, len(whole))
	for _, h := range whole {
		seen[h] = true
	}
	for todo := slices.Clone(tips); len(todo) > 0; {
		h := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		switch {
		case seen[h]:
			continue
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		seen[h] = true
		if cut[h] {
			ends = append(ends, h)
			continue
		}
		commit, err := objects.commit(h)
		if err != nil {
			return nil, corrupt("read the history: %w", err)
		}
		todo = append(todo, commit.ParentHashes...)
	}
	slices.SortFunc(ends, func(a, b plumbing.Hash) int { return bytes.Compare(a[:], b[:]) })
	return ends, nil
}

// hold records in the store what has been obtained, and how much of its history a tree of it has.
func (s *syncing) hold(ctx context.Context, in store, objects *objects, shallow []plumbing.Hash, depth events.Depth) error {
	refs, err := in.refs()
	if err != nil {
		return err
	}
	var whole []plumbing.Hash // with all their history: a push to it costs what is new
	if len(shallow)+len(in.shallow()) == 0 {
		whole = distinct(refs)
	}
	if s.history.shallow, err = reachable(ctx, objects, []plumbing.Hash{s.plan.commit}, shallow, whole); err != nil {
		return fmt.Errorf("%.12s: %w", s.plan.commit, err)
	}
	refs[s.tip.ref.String()] = s.plan.commit
	all, err := reachable(ctx, objects, distinct(refs), shallow, whole)
	if err != nil {
		return err
	}
	s.history.depth = depth
	return s.f.guarded(ctx, s.req.Fence, func() error { return in.hold(s.tip.ref, s.plan.commit, depth, all) })
}
