package app

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/cells"
	"lockstep/internal/cells/move"
	"lockstep/internal/dashboard"
	"lockstep/internal/watch"
)

// CellStatus is a cell of the directory, and whether it answers.
type CellStatus struct {
	cells.Cell
	Share   float64        // of the repositories, by the weights of now; 0 to 1
	Watched int64          // repositories
	Out     MovesLeft      // to other cells, as planned last: after every change of weights, and while it is carried out
	In      MovesLeft      // to this cell: planned, or requested one by one
	Missing *cells.Missing // why it does not answer; nil if it does
}

// ReadCells returns all cells, within [cells.AnswerTimeout].
func ReadCells(ctx context.Context, client redis.UniversalClient, directory *cells.Directory) []CellStatus {
	all, placed := directory.Cells(), 0
	members := make([]cells.Member, len(all))
	for i, c := range all {
		placed += c.Placed
		members[i] = cells.Member{Name: c.Name, Namespace: c.Prefix}
	}
	list := make([]CellStatus, len(all))
	type answer struct {
		watched, requested int64
		leaving            leaving
	}
	answers := cells.Gather(ctx, members, cells.AnswerTimeout, func(
		ctx context.Context, cell cells.Member,
	) (found answer, err error) {
		found.watched, err = watch.NewRegistry(client, cell.Namespace).Count(ctx)
		if err == nil {
			found.requested, err = move.NewQueue(client, cell.Namespace).Len(ctx)
		}
		if err == nil && directory.Pending() {
			found.leaving, err = readLeaving(ctx, client, cell.Namespace)
		}
		return found, err
	})
	for i, a := range answers {
		list[i] = CellStatus{Cell: all[i], Share: float64(all[i].Placed) / float64(max(placed, 1)), Watched: a.Value.watched}
		list[i].Out = movesLeft(a.Value.leaving.total(), a.Value.leaving.pace())
		pace := 0.0
		for _, from := range answers {
			pace += from.Value.leaving.to(all[i].Name).PerSecond
		}
		list[i].In = movesLeft(int(a.Value.requested), pace)
		if a.Err != nil {
			missing := a.Missing()
			list[i].Missing = &missing
		}
	}
	return list
}

// FailedMoves returns by cell the moves to it that failed, up to limit each, as far as they are found within
// [cells.AnswerTimeout].
func FailedMoves(
	ctx context.Context, client redis.UniversalClient, directory *cells.Directory, limit int,
) map[string][]move.Request {
	failed := map[string][]move.Request{}
	for _, a := range cells.Gather(ctx, cells.All(client, directory).Members(), cells.AnswerTimeout, func(
		ctx context.Context, cell cells.Member,
	) ([]move.Request, error) {
		return move.NewQueue(client, cell.Namespace).Failed(ctx, limit)
	}) {
		if len(a.Value) > 0 {
			failed[a.Name] = a.Value
		}
	}
	return failed
}

// cellsAskedEvery is how long the dashboard shows the same answers of the cells.
const cellsAskedEvery = 5 * time.Second

// shownCells returns the cells for the dashboard.
func shownCells(cfg Config, client redis.UniversalClient) func(context.Context) []dashboard.Cell {
	var mu sync.Mutex
	var shown []dashboard.Cell
	var asked time.Time
	return func(ctx context.Context) []dashboard.Cell {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(asked) < cellsAskedEvery {
			return shown
		}
		shown = nil
		for _, c := range ReadCells(ctx, client, cfg.cells) {
			one := dashboard.Cell{
				Name: c.Name, State: string(c.State), Here: c.Name == cfg.Cell, Share: c.Share, Watched: c.Watched,
				Out: c.Out.String(), In: c.In.String(),
			}
			if c.Missing != nil {
				one.Error = c.Missing.Error
			}
			shown = append(shown, one)
		}
		asked = time.Now()
		return shown
	}
}
