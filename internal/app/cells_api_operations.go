package app

import (
	"context"
	"sync"

	"lockstep/internal/cells"
	"lockstep/internal/server"
	"lockstep/locking"
)

// locksByCell lists the held leases of all cells. Each list is shared by all requests, as [server.ShareLocks] does.
type locksByCell struct {
	set    *cells.Set
	shared *sync.Map // cells.Member → server.Locks
}

func (l locksByCell) of(cell cells.Member) (server.Locks, error) {
	if known, ok := l.shared.Load(cell); ok {
		return known.(server.Locks), nil
	}
	inspector, err := locking.NewInspector(locking.InspectorConfig{Redis: l.set.Redis(), Prefix: cell.Namespace.Locks()})
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
