package backup

import (
	"context"
	"fmt"

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
		return false, "", inCell(c.Member, err)
	}
	if move, _, moved := states[0].MovedToCell(); moved {
		return false, move.Cell, nil
	}
	if _, arriving := states[0].Arriving(); arriving {
		return false, "", nil
	}
	watched, err := c.registry.AreWatched(ctx, []events.RepoPath{repo})
	if err != nil {
		return false, "", inCell(c.Member, err)
	}
	return watched[0] || states[0].Exported() != nil, "", nil
}

// inCell adds the name of the cell, if it has one, to an error.
func inCell(cell cells.Member, err error) error {
	if err == nil || cell.Name == "" {
		return err
	}
	return fmt.Errorf("cell %s: %w", cell.Name, err)
}
