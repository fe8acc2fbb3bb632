package locking_test

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

// A fence is always higher than every fence the storage has seen, if the request's floor is the highest of those
// or, without a floor, while Redis' clock does not go back.
func TestFencesOnlyGrow(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	processes := []process{start(t, server, "w1"), start(t, server, "w2")}
	highest := uint64(0)
	rapid.Check(t, func(rt *rapid.T) {
		key := "k"
		last := uint64(0)
		rt.Repeat(map[string]func(*rapid.T){
			"grant": func(rt *rapid.T) {
				p := rapid.SampledFrom(processes).Draw(rt, "process")
				l := must(t, p, key, "")
				if l.Fence() <= last {
					rt.Fatalf("fence %d follows %d", l.Fence(), last)
				}
				last, highest = l.Fence(), max(highest, l.Fence())
				release(t, l)
			},
			"grant above a floor": func(rt *rapid.T) {
				ahead := rapid.Uint64Range(0, 1_000_000).Draw(rt, "ahead of Redis' clock, µs")
				floor := max(last, uint64(time.Now().UnixMicro())) + ahead
				p := rapid.SampledFrom(processes).Draw(rt, "process")
				l, err := p.Acquire(context.Background(), locking.Request{Key: key, Floor: floor})
				if err != nil {
					rt.Fatal(err)
				}
				if l.Fence() <= floor {
					rt.Fatalf("fence %d is not above the floor %d", l.Fence(), floor)
				}
				last = l.Fence()
				release(t, l)
			},
			"hand over": func(rt *rapid.T) {
				first := must(t, processes[0], key, "")
				floor := first.Fence() + rapid.Uint64Range(0, 1_000_000).Draw(rt, "floor")
				wait := queueUp(t, processes[1], context.Background(), locking.Request{Key: key, Floor: floor})
				release(t, first)
				l := soon(t, wait, "the hand-over").ok(t)
				if l.Fence() <= floor {
					rt.Fatalf("fence %d is not above the floor %d", l.Fence(), floor)
				}
				last = l.Fence()
				release(t, l)
			},
			"the data is lost": func(rt *rapid.T) {
				if uint64(time.Now().UnixMicro()) <= last {
					rt.Skip("the last floor was ahead of the clock")
				}
				client.FlushAll(context.Background())
			},
		})
	})
	if highest == 0 {
		t.Fatal("nothing was granted")
	}
}
