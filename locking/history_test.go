package locking_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

// step is an operation of a history: the grant of a fence, or the end of its lease.
type step struct {
	acquired bool
	fence    uint64
}

// lockState is the state of the model: whether the lock is held, and the highest fence so far.
type lockState struct {
	held bool
	last uint64
}

// model is the specification: at most one holder, and increasing fences.
var model = porcupine.Model{
	Init: func() any { return lockState{} },
	Step: func(state, input, _ any) (bool, any) {
		s, in := state.(lockState), input.(step)
		if in.acquired {
			return !s.held && in.fence > s.last, lockState{held: true, last: in.fence}
		}
		return s.held && s.last == in.fence, lockState{last: s.last}
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

// history records operations as seen by their callers.
type history struct {
	began time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
}

func (h *history) now() int64 { return time.Since(h.began).Nanoseconds() }

func (h *history) add(client int, what step, call, ret int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: what, Call: call, Return: ret})
}

// Processes acquire, release and die at random. The recorded history must be linearizable with respect to a lock.
func TestHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	const processes, each, rounds = 4, 3, 12
	server := redistest.Start(t)
	h := &history{began: time.Now()}
	var wg sync.WaitGroup
	for n := range processes {
		p := start(t, server, fmt.Sprint("w", n), lease(2*time.Second)) // a stall of this process must not end a lease
		// Every other process dies during the test and abandons its leases.
		dies := make(chan struct{})
		if n%2 == 1 {
			wg.Go(func() {
				time.Sleep(time.Duration(20+rand.IntN(60)) * time.Millisecond) // a random moment
				close(dies)
				ended, cancel := context.WithCancel(context.Background())
				cancel()
				_ = p.Close(ended)
			})
		}
		for g := range each {
			client := n*each + g
			wg.Go(func() {
				for range rounds {
					call := h.now()
					got, err := p.Acquire(t.Context(), locking.Request{Key: "k", Job: fmt.Sprint(client)})
					if err != nil {
						return // closed without a grant
					}
					h.add(client, step{acquired: true, fence: got.Fence()}, call, h.now())
					time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond) // the work
					call = h.now()
					select {
					case <-dies: // not released: the lease may expire during the test or not
						h.add(client, step{fence: got.Fence()}, call, math.MaxInt64)
						return
					default:
					}
					err = got.Release(t.Context())
					ret := h.now()
					if err != nil {
						ret = math.MaxInt64
					}
					h.add(client, step{fence: got.Fence()}, call, ret)
				}
			})
		}
	}
	wg.Wait()
	if len(h.ops) < processes*each {
		t.Fatalf("only %d operations: nothing to check", len(h.ops))
	}
	if verdict := porcupine.CheckOperationsTimeout(model, h.ops, time.Minute); verdict != porcupine.Ok {
		t.Errorf("the history of %d operations is not that of a lock: %s", len(h.ops), verdict)
	}
}

// The checker must reject invalid histories.
func TestModelRejectsInvalidHistories(t *testing.T) {
	t.Parallel()
	op := func(acquired bool, fence uint64, call, ret int64) porcupine.Operation {
		return porcupine.Operation{ClientId: int(fence), Input: step{acquired, fence}, Call: call, Return: ret}
	}
	for name, tc := range map[string]struct {
		ops []porcupine.Operation
		ok  bool
	}{
		"one after the other": {[]porcupine.Operation{op(true, 1, 0, 1), op(false, 1, 2, 3), op(true, 2, 4, 5)}, true},
		"a hand-over in time": {[]porcupine.Operation{op(true, 1, 0, 1), op(false, 1, 2, 9), op(true, 2, 0, 4)}, true},
		"two holders at once": {[]porcupine.Operation{op(true, 1, 0, 1), op(true, 2, 2, 3), op(false, 1, 4, 5)}, false},
		"a fence that shrank": {[]porcupine.Operation{op(true, 2, 0, 1), op(false, 2, 2, 3), op(true, 1, 4, 5)}, false},
	} {
		if got := porcupine.CheckOperations(model, tc.ops); got != tc.ok {
			t.Errorf("%s: %v, want %v", name, got, tc.ok)
		}
	}
}
