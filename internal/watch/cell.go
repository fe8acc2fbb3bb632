package watch

import (
	"context"
	"fmt"
	"maps"

	"lockstep/events"
)

// A repository that is moved between cells takes its watches along. They are added in the new cell before
// they are removed in the old one, so that each webhook finds them in one cell at least. Nobody else may change those in
// the old one: see write.lua.

// Receive stores the watches of a repository that arrives from another cell by a move, in place of any that are left of
// an interrupted one. It requests no poll: the next one is due an interval from now. It is safe to repeat. It
// writes nothing if the state knows of that move or a later one, so that an attempt that was overtaken does no harm.
func (r *Registry) Receive(ctx context.Context, watches []Watch, mark string) error {
	if len(watches) == 0 {
		return nil
	}
	edits, err := editsOf(watches, nil)
	if err != nil {
		return err
	}
	if len(edits) != 1 {
		return fmt.Errorf("receive watches of %d repositories at once: want one", len(edits))
	}
	e := edits[0]
	return r.move(ctx, e.repo, e.put, mark)
}

// Release removes the watches of a repository that was moved to another cell. Its clone is not removed by
// that. It is safe to repeat. It writes nothing unless the state has that mark.
func (r *Registry) Release(ctx context.Context, repo events.RepoPath, mark string) error {
	return r.move(ctx, repo, nil, mark)
}

// move replaces the watches of a repository, for a move between cells.
func (r *Registry) move(ctx context.Context, repo events.RepoPath, docs map[string]string, mark string) error {
	return r.untilWritten(ctx, repo, func() error {
		was, err := r.load(ctx, repo)
		if err != nil || maps.Equal(was.docs, docs) {
			return err
		}
		return r.write(ctx, nil, rewrite{was: was, docs: docs, moves: mark})
	})
}

// CheckReceive returns an error of the class [events.ClassConflict] if [Registry.Receive] would be refused,
// because a path above or below that of the watches is watched here.
func (r *Registry) CheckReceive(ctx context.Context, watches []Watch) error {
	if len(watches) == 0 {
		return nil
	}
	was, err := r.load(ctx, watches[0].Repo)
	if err != nil || len(was.docs) > 0 {
		return err
	}
	return r.checkNesting(ctx, watches[0].Repo)
}
