package volume

import (
	"context"
	"errors"
	"sync"

	"lockstep/internal/git/wire"
)

const maxFetches = 8 // submodules of one tree that are fetched at once

// fetchPool fetches several repositories concurrently, as far as their hosts have permits. A fetch that runs alone waits for permits
// in the host's queue, like any other request. A fetch beside others does not wait: without a permit it fails, and is repeated
// when fewer run.
type fetchPool struct {
	mu      sync.Mutex
	freed   *sync.Cond // a fetch has ended
	limit   int        // fetches that may run; grows with each that succeeds
	running int
}

func newFetchPool() *fetchPool {
	p := &fetchPool{limit: maxFetches}
	p.freed = sync.NewCond(&p.mu)
	return p
}

// do calls fetch once it may run, again if it got no permit. Its requests go through [fetchPool.gate].
func (p *fetchPool) do(ctx context.Context, fetch func() error) error {
	for {
		p.enter()
		err := context.Cause(ctx)
		if err == nil {
			err = fetch()
		}
		p.leave(err)
		if !errors.Is(err, wire.ErrNoPermit) {
			return err
		}
	}
}

func (p *fetchPool) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.running >= p.limit {
		p.freed.Wait()
	}
	p.running++
}

func (p *fetchPool) leave(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	switch {
	case errors.Is(err, wire.ErrNoPermit):
		p.limit = max(1, p.running)
	case err == nil:
		p.limit = min(p.limit+1, maxFetches)
	}
	p.freed.Broadcast()
}

func (p *fetchPool) isAlone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running == 1
}

// gate returns the gate for a fetch. Its error is [wire.ErrNoPermit] if there is no permit beside the other fetches.
func (p *fetchPool) gate(of wire.Gate) wire.Gate {
	if of == nil {
		return nil
	}
	return poolGate{of, p}
}

type poolGate struct {
	of   wire.Gate
	pool *fetchPool
}

func (g poolGate) Enter(ctx context.Context, host string, optional bool) (wire.Permit, error) {
	return g.of.Enter(ctx, host, optional || !g.pool.isAlone())
}
