package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const (
	paceSpan = 5 * time.Minute // the pace is that of the last one or two spans
	paceKeep = 24 * time.Hour  // longer than between two plans
)

// leaving is how many repositories of a cell are left to move to other cells, as its worker has planned last.
type leaving struct {
	At   time.Time      `json:"at"`
	Left map[string]int `json:"left"` // by the cell to which they are to be moved
	Past []pastLeft     `json:"past"` // the earlier numbers from which the pace is computed, oldest first
}

type pastLeft struct {
	At   time.Time `json:"at"`
	Left int       `json:"left"`
}

func (l leaving) total() int {
	total := 0
	for _, n := range l.Left {
		total += n
	}
	return total
}

// next returns what a later plan has found. If it has found more, the weights have changed, and the pace begins anew.
func (l leaving) next(left map[string]int, at time.Time) leaving {
	now := leaving{At: at, Left: left, Past: l.Past}
	if len(l.Past) == 0 || now.total() > l.total() {
		now.Past = []pastLeft{{at, now.total()}}
		return now
	}
	if at.Sub(now.Past[len(now.Past)-1].At) >= paceSpan {
		now.Past = append(now.Past[max(0, len(now.Past)-1):len(now.Past):len(now.Past)], pastLeft{at, now.total()})
	}
	return now
}

// pace returns how many repositories are moved a second, 0 if that is unknown.
func (l leaving) pace() float64 {
	if len(l.Past) == 0 || l.Past[0].Left <= l.total() || !l.At.After(l.Past[0].At) {
		return 0
	}
	return float64(l.Past[0].Left-l.total()) / l.At.Sub(l.Past[0].At).Seconds()
}

// to returns how many of the repositories are left to move to a cell.
func (l leaving) to(cell string) MovesLeft {
	if l.total() == 0 {
		return MovesLeft{}
	}
	return movesLeft(l.Left[cell], l.pace()*float64(l.Left[cell])/float64(l.total()))
}

// MovesLeft is how many repositories are left to move, and how long it takes if it goes on as before.
type MovesLeft struct {
	Left      int     `json:"left"`
	PerSecond float64 `json:"per_second,omitempty"`   // 0 if unknown
	Seconds   int64   `json:"seconds_left,omitempty"` // 0 if unknown
}

func movesLeft(left int, pace float64) MovesLeft {
	m := MovesLeft{Left: left, PerSecond: pace}
	if pace > 0 {
		m.Seconds = max(1, int64(math.Round(float64(left)/pace)))
	}
	return m
}

// String is empty if nothing is left.
func (m MovesLeft) String() string {
	switch {
	case m.Left == 0:
		return ""
	case m.PerSecond == 0:
		return fmt.Sprint(m.Left)
	}
	return fmt.Sprintf("%d, %.2g/s, %v left", m.Left, m.PerSecond, time.Duration(m.Seconds)*time.Second)
}

func leavingKey(cell events.Namespace) string { return cell.Rebalance() + ":left" }

// readLeaving returns the zero value if nothing is left to move.
func readLeaving(ctx context.Context, client redis.Cmdable, cell events.Namespace) (l leaving, err error) {
	document, err := client.Get(ctx, leavingKey(cell)).Bytes()
	if errors.Is(err, redis.Nil) {
		return leaving{}, nil
	}
	if err == nil {
		err = json.Unmarshal(document, &l)
	}
	if err != nil {
		return leaving{}, fmt.Errorf("read how many repositories are left to move: %w", err)
	}
	return l, nil
}

// write stores what is left, for [ReadCells].
func (l leaving) write(ctx context.Context, client redis.Cmdable, cell events.Namespace) error {
	if l.total() == 0 {
		return client.Del(ctx, leavingKey(cell)).Err()
	}
	document, err := json.Marshal(l)
	if err == nil {
		err = client.Set(ctx, leavingKey(cell), document, paceKeep).Err()
	}
	return err
}
