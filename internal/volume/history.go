package volume

import (
	"context"
	"fmt"
	"slices"

	"lockstep/events"
	"lockstep/internal/git"
	"lockstep/internal/git/object"
)

// deeper returns the greater of two depths.
func deeper(a, b events.Depth) events.Depth {
	if a.Covers(b) {
		return a
	}
	return b
}

// walkHistory calls visit for each commit of the tips' histories that is not in visited yet, and adds it.
// visit returns the commits to continue with.
func walkHistory(
	ctx context.Context, tips []object.ID, visited map[object.ID]bool, visit func(object.ID) ([]object.ID, error),
) error {
	for todo := slices.Clone(tips); len(todo) > 0; {
		h := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		switch {
		case visited[h]:
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		visited[h] = true
		next, err := visit(h)
		if err != nil {
			return err
		}
		todo = append(todo, next...)
	}
	return nil
}

func setOf(commits []object.ID) map[object.ID]bool {
	set := make(map[object.ID]bool, len(commits))
	for _, h := range commits {
		set[h] = true
	}
	return set
}

// reachable follows the history of tips and returns the shallow commits that it ends at. The histories of the
// whole commits are known to be complete and are skipped. A missing parent of any other commit is an error of
// ClassCorrupt.
func reachable(
	ctx context.Context, objects *object.Store, tips, shallow, whole []object.ID,
) (ends []object.ID, err error) {
	defer object.RecoverCorrupt(&err)
	cut := setOf(shallow)
	err = walkHistory(ctx, tips, setOf(whole), func(h object.ID) ([]object.ID, error) {
		if cut[h] {
			ends = append(ends, h)
			return nil, nil
		}
		commit, err := objects.Commit(h)
		if err != nil {
			return nil, object.Corruptf("read history: %w", err)
		}
		return commit.ParentHashes, nil
	})
	slices.SortFunc(ends, object.ID.Compare)
	return ends, err
}

// hold records the plan's commit in the store, and the depth of its history.
func (s *syncer) hold(
	ctx context.Context, in store, objects *object.Store, shallow []object.ID, depth events.Depth,
) error {
	refs, err := in.refs()
	if err != nil {
		return err
	}
	var whole []object.ID // complete histories, which reachable skips
	if len(shallow)+len(in.shallow()) == 0 {
		whole = distinct(refs)
	}
	if s.history.Shallow, err = reachable(ctx, objects, []object.ID{s.plan.Commit}, shallow, whole); err != nil {
		return fmt.Errorf("history of %.12s: %w", s.plan.Commit, err)
	}
	refs[s.ref.String()] = s.plan.Commit
	all, err := reachable(ctx, objects, distinct(refs), shallow, whole)
	if err != nil {
		return err
	}
	s.history.Depth = git.Depth(depth)
	return s.f.guarded(ctx, s.fence, func() error { return in.hold(s.ref, s.plan.Commit, depth, all) })
}
