package volume

import (
	"context"
	"errors"
	"sync"

	"lockstep/events"
	"lockstep/internal/git/wire"
)

const crewSize = 8 // submodules of one tree that are fetched at once

// crew fetches several repositories concurrently, as far as their hosts have permits. A fetch that runs alone waits for permits
// in the host's queue, like any other request. A fetch beside others does not wait: without a permit it fails, and is repeated
// when fewer run.
type crew struct {
	mu      sync.Mutex
	left    *sync.Cond // a fetch has ended
	most    int
	size    int // fetches that may run; grows with each that succeeds
	running int
}

// newCrew returns a crew for requests through gates like this one.
func newCrew(gate wire.Gate) *crew {
	c := &crew{most: crewSize}
	if _, ok := gate.(wire.TryGate); gate != nil && !ok {
		c.most = 1
	}
	c.size = c.most
	c.left = sync.NewCond(&c.mu)
	return c
}

// do calls fetch once it may run, again if it got no permit. Its requests go through [crew.gate].
func (c *crew) do(ctx context.Context, fetch func() error) error {
	for {
		c.enter()
		err := context.Cause(ctx)
		if err == nil {
			err = fetch()
		}
		c.leave(err)
		if !errors.Is(err, wire.ErrNoPermit) {
			return err
		}
	}
}

func (c *crew) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.running >= c.size {
		c.left.Wait()
	}
	c.running++
}

func (c *crew) leave(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	switch {
	case errors.Is(err, wire.ErrNoPermit):
		c.size = max(1, c.running)
	case err == nil:
		c.size = min(c.size+1, c.most)
	}
	c.left.Broadcast()
}

func (c *crew) isAlone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running == 1
}

// gate returns the gate for a fetch. Its error is [wire.ErrNoPermit] if there is no permit beside the other fetches.
func (c *crew) gate(of wire.Gate) wire.Gate {
	if try, ok := of.(wire.TryGate); ok {
		return crewGate{try, c}
	}
	return of
}

type crewGate struct {
	of   wire.TryGate
	crew *crew
}

func (g crewGate) Enter(ctx context.Context, host string) (wire.Permit, error) {
	if g.crew.isAlone() {
		return g.of.Enter(ctx, host)
	}
	permit, err := g.of.TryEnter(ctx, host)
	if err != nil && events.ClassOf(err) == events.ClassLimited {
		return nil, wire.ErrNoPermit
	}
	return permit, err
}

// maxSilent is the number of submodules after which a host is not asked for more in the same sync, if it did not answer.
const maxSilent = 3

// patience limits the requests for submodules to a host that does not answer. The limit also applies to concurrent requests before the first answer.
type patience struct {
	mu    sync.Mutex
	ended *sync.Cond // a request has
	hosts map[string]*asked
}

// asked counts the requests to a host.
type asked struct {
	now, silent int // submodules that it is being asked for, and for which it did not answer
	answered    bool
}

func newPatience() *patience {
	p := &patience{hosts: map[string]*asked{}}
	p.ended = sync.NewCond(&p.mu)
	return p
}

func (p *patience) of(host string) *asked {
	if p.hosts[host] == nil {
		p.hosts[host] = &asked{}
	}
	return p.hosts[host]
}

// answers records that a host answers.
func (p *patience) answers(host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of(host).answered = true
}

// ask calls fetch, which requests a submodule from the host, unless too many requests to the host were not answered.
func (p *patience) ask(host string, fetch func() error) error {
	p.mu.Lock()
	h := p.of(host)
	for !h.answered && h.silent < maxSilent && h.now+h.silent >= maxSilent {
		p.ended.Wait()
	}
	if h.silent >= maxSilent {
		p.mu.Unlock()
		return events.Errorf(events.Retryable, events.ClassNetwork, "%s did not answer for %d other submodules", host, maxSilent)
	}
	h.now++
	p.mu.Unlock()
	err := fetch()
	p.mu.Lock()
	defer p.mu.Unlock()
	h.now--
	switch class := events.ClassOf(err); {
	case err != nil && class == events.ClassNetwork:
		h.silent++
	case err == nil || class != events.ClassLimited:
		h.answered = true
	}
	p.ended.Broadcast()
	return err
}
