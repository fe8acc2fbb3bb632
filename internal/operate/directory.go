package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/watch"
)

// Cell is a cell of the directory, and whether it answers.
type Cell struct {
	cells.Cell
	Share    float64 `json:"share"`               // of the repositories, by the weights of now; 0 to 1
	Watched  int64   `json:"watched"`             // repositories
	Out      int     `json:"moves_out,omitempty"` // repositories left to move to other cells, as its worker has found last
	NoAnswer string  `json:"no_answer,omitempty"` // why it does not answer; "" if it does
}

// Percent is the cell's share of the repositories, 0 to 100.
func (c Cell) Percent() float64 { return 100 * c.Share }

// Directory returns all cells, within [cells.AnswerTimeout].
func Directory(ctx context.Context, client redis.UniversalClient, directory *cells.Directory) []Cell {
	all, placed := directory.Cells(), 0
	members, list := make([]cells.Member, len(all)), make([]Cell, len(all))
	for i, c := range all {
		placed += c.Placed
		members[i] = c.Member()
	}
	for i, a := range cells.Gather(ctx, members, cells.AnswerTimeout, func(
		ctx context.Context, cell cells.Member,
	) (found Cell, err error) {
		found.Watched, err = watch.NewRegistry(client, cell.Namespace).Count(ctx)
		if err != nil || !directory.Pending() {
			return found, err
		}
		left, err := ReadMovesLeft(ctx, client, cell.Namespace)
		found.Out = left.Left
		return found, err
	}) {
		list[i] = a.Value
		list[i].Cell, list[i].Share = all[i], float64(all[i].Placed)/float64(max(placed, 1))
		if a.Err != nil {
			list[i].NoAnswer = a.Missing().Error
		}
	}
	return list
}

// MovesLeft is what a cell's worker reports of the moves to other cells.
type MovesLeft struct {
	Left   int          `json:"left"`             // repositories
	Failed []FailedMove `json:"failed,omitempty"` // up to 20
}

// FailedMove is a move whose last attempt failed.
type FailedMove struct {
	Repo  string `json:"repo"`
	From  string `json:"from"`
	To    string `json:"to"`
	Error string `json:"error"`
}

// Fail adds a move, unless there are 20.
func (l *MovesLeft) Fail(failed FailedMove) {
	if len(l.Failed) < 20 {
		l.Failed = append(l.Failed, failed)
	}
}

const movesLeftKeep = 24 * time.Hour // longer than between two reports

func movesLeftKey(cell events.Namespace) string { return cell.Rebalance() + ":left" }

// Write stores the report of a cell.
func (l *MovesLeft) Write(ctx context.Context, client redis.Cmdable, cell events.Namespace) error {
	document, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return client.Set(ctx, movesLeftKey(cell), document, movesLeftKeep).Err()
}

// ReadMovesLeft returns the report of a cell.
func ReadMovesLeft(ctx context.Context, client redis.Cmdable, cell events.Namespace) (l MovesLeft, err error) {
	document, err := client.Get(ctx, movesLeftKey(cell)).Bytes()
	if errors.Is(err, redis.Nil) {
		return MovesLeft{}, nil
	}
	if err == nil {
		err = json.Unmarshal(document, &l)
	}
	if err != nil {
		return MovesLeft{}, fmt.Errorf("read how many repositories are left to move: %w", err)
	}
	return l, nil
}
