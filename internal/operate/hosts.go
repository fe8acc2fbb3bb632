package operate

import (
	"context"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/hosts"
)

const hastened = 100 // waiting changes of a repository that ask at once after a block was lifted

// LiftBlocks lifts the blocks of a host for all its credentials, or for one if not nil, and returns them. The first
// repositories that wait, in any cell that answers, ask again at once.
func LiftBlocks(
	ctx context.Context, set *cells.Set, reader hosts.Reader, host string, credential *string,
) ([]hosts.Lifted, error) {
	lifted, err := reader.Clear(ctx, host, credential)
	if err != nil {
		return lifted, err
	}
	_, err = Each(ctx, set, func(cell cells.Member) error {
		for _, block := range lifted {
			for _, repo := range block.Waiting {
				if err := ctx.Err(); err != nil { // Hasten itself is not cancelled
					return err
				}
				if err := stream.Hasten(ctx, set.Redis(), string(cell.Namespace), cell.Namespace.Changes(),
					events.WorkersGroup, repo, hastened); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return lifted, err
}
