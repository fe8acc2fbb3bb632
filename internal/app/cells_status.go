package app

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/cells"
	"lockstep/internal/dashboard"
	"lockstep/internal/watch"
)

// CellStatus is a cell of the directory, and whether it answers.
type CellStatus struct {
	cells.Cell
	Share   float64        // of the repositories, by the weights of now; 0 to 1
	Watched int64          // repositories
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
	for i, a := range cells.Gather(ctx, members, cells.AnswerTimeout, func(ctx context.Context, cell cells.Member) (int64, error) {
		return watch.NewRegistry(client, cell.Namespace).Count(ctx)
	}) {
		list[i] = CellStatus{Cell: all[i], Share: float64(all[i].Placed) / float64(max(placed, 1)), Watched: a.Value}
		if a.Err != nil {
			missing := a.Missing()
			list[i].Missing = &missing
		}
	}
	return list
}

// cellsAskedEvery is how long the dashboard shows the same answers of the cells.
const cellsAskedEvery = 5 * time.Second

// shownCells returns the cells for the dashboard, or nil without cells.
func shownCells(cfg Config, client redis.UniversalClient) func(context.Context) []dashboard.Cell {
	if cfg.cells == nil {
		return nil
	}
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
			one := dashboard.Cell{Name: c.Name, State: string(c.State), Here: c.Name == cfg.Cell, Share: c.Share, Watched: c.Watched}
			if c.Missing != nil {
				one.Error = c.Missing.Error
			}
			shown = append(shown, one)
		}
		asked = time.Now()
		return shown
	}
}
