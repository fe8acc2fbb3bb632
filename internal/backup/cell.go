package backup

import (
	"context"
	"iter"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// Deployment is what is exported, or imported into.
type Deployment struct {
	Redis  redis.UniversalClient
	Cells  *cells.Set       // those of a directory, or a single deployment
	Tokens events.Namespace // prefix of the tokens: that of the directory if there is one
}

// cell is a cell, or a single deployment, with what a document has of it.
type cell struct {
	cells.Member
	registry *watch.Registry
	states   *state.Store
}

func openCell(client redis.UniversalClient, m cells.Member) *cell {
	return &cell{m, watch.NewRegistry(client, m.Namespace), state.NewStore(client, m.Namespace)}
}

// look reports whether the cell has a repository. If it has left, movedTo is the cell to which it was moved; it does not count, nor does one
// that has not arrived yet, although some of it is there.
func (c *cell) look(ctx context.Context, repo events.RepoPath) (has bool, movedTo string, err error) {
	states, _, err := c.states.Read(ctx, []events.RepoPath{repo})
	if err != nil {
		return false, "", c.Explain(err)
	}
	if move, _, moved := states[0].MovedToCell(); moved {
		return false, move.Cell, nil
	}
	if _, arriving := states[0].Arriving(); arriving {
		return false, "", nil
	}
	watched, err := c.registry.AreWatched(ctx, []events.RepoPath{repo})
	if err != nil {
		return false, "", c.Explain(err)
	}
	return watched[0] || states[0].Exported() != nil, "", nil
}

// reposWithState iterates over the repositories that the cell has state of, a page at a time.
func (c *cell) reposWithState(ctx context.Context) iter.Seq2[[]events.RepoPath, error] {
	return func(yield func([]events.RepoPath, error) bool) {
		for cursor := uint64(0); ; {
			page, err := c.states.List(ctx, "", cursor, 1000)
			var repos []events.RepoPath
			for _, summary := range page.Repos {
				if repo, err := events.ParseRepoPath(summary.Repo); err == nil {
					repos = append(repos, repo)
				}
			}
			if !yield(repos, err) || err != nil || page.Next == 0 {
				return
			}
			cursor = page.Next
		}
	}
}
