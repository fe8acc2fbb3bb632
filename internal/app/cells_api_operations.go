package app

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/server"
	"lockstep/locking"
)

// deadOfAll are the dead letters of all cells.
type deadOfAll struct{ allCells }

func (d deadOfAll) in(cell cells.Member) *stream.DeadLetters {
	return stream.NewDeadLetters(d.redis, string(cell.Namespace))
}

func (d deadOfAll) List(ctx context.Context, q stream.Query) (page server.DeadPage, err error) {
	index, own, ok := cursorOf(q.After)
	if !ok {
		return page, fmt.Errorf("%w: %.40q; want \"next\" of the previous page", stream.ErrBadID, q.After)
	}
	q.After = own
	next, absent, err := d.page(ctx, index, func(ctx context.Context, m cells.Member) (more bool, err error) {
		page.Cell = m.Name
		page.Letters, page.Next, err = d.in(m).List(ctx, q)
		return page.Next != "", err
	})
	if err != nil {
		return server.DeadPage{}, err
	}
	page.Next, page.Missing = cursorTo(index, next, page.Next), absent != ""
	return page, nil
}

func (d deadOfAll) Of(ctx context.Context, cell, id string) (server.Dead, string, error) {
	if cell != "" {
		m, ok := d.set.Cell(cell)
		if !ok {
			return nil, "", fmt.Errorf("%w in cell %.70q: no such cell", stream.ErrNoLetter, cell)
		}
		return d.in(m), m.Name, nil
	}
	var found []cells.Member
	var failed error
	for _, a := range cells.Gather(ctx, d.set.Members(), cells.AnswerTimeout, func(
		ctx context.Context, m cells.Member,
	) (struct{}, error) {
		_, err := d.in(m).Get(ctx, id)
		return struct{}{}, err
	}) {
		switch {
		case a.Err == nil:
			found = append(found, a.Member)
		case !errors.Is(a.Err, stream.ErrNoLetter):
			failed = a.Err
		}
	}
	switch {
	case len(found) > 1:
		return nil, "", server.ErrSeveralLetters
	case len(found) == 1:
		return d.in(found[0]), found[0].Name, nil
	case failed != nil:
		return nil, "", failed
	}
	return nil, "", fmt.Errorf("%w: %s", stream.ErrNoLetter, id)
}

// locksByCell lists the held leases of all cells. Each list is shared by all requests, as [server.ShareLocks] does.
type locksByCell struct {
	allCells
	shared *sync.Map // cells.Member → server.Locks
}

func (l locksByCell) of(cell cells.Member) (server.Locks, error) {
	if known, ok := l.shared.Load(cell); ok {
		return known.(server.Locks), nil
	}
	inspector, err := locking.NewInspector(locking.InspectorConfig{Redis: l.redis, Prefix: cell.Namespace.Locks()})
	if err != nil {
		return nil, err
	}
	locks, _ := l.shared.LoadOrStore(cell, server.ShareLocks(inspector))
	return locks.(server.Locks), nil
}

func (l locksByCell) list(ctx context.Context) (held map[string][]locking.Status, missing []string, err error) {
	held = map[string][]locking.Status{}
	for _, a := range cells.Gather(ctx, l.set.Members(), cells.AnswerTimeout, func(
		ctx context.Context, m cells.Member,
	) ([]locking.Status, error) {
		locks, err := l.of(m)
		if err != nil {
			return nil, err
		}
		return locks.List(ctx)
	}) {
		if a.Err != nil {
			missing = append(missing, a.Name)
			continue
		}
		held[a.Name] = a.Value
	}
	return held, missing, ctx.Err()
}
