package locking_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/locking"
)

// Connections break and Redis restarts repeatedly. The storage must only see increasing fences, and every
// request must be granted.
func TestFencesHoldThroughFaults(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t)
	admin := server.Client()
	var processes []process
	for i := range 3 {
		processes = append(processes, start(t, server, fmt.Sprint("w", i), lease(500*time.Millisecond)))
	}
	ctx, stop := context.WithCancel(t.Context())
	storage := struct {
		sync.Mutex
		highest           uint64
		accepted, refused int
		owner             map[uint64]string
	}{owner: map[uint64]string{}}
	var done sync.WaitGroup
	for g := range 6 {
		done.Go(func() {
			p := processes[g%3]
			for ctx.Err() == nil {
				_ = p.Do(ctx, locking.Request{Key: "k"}, func(ctx context.Context, l *locking.Lease) error {
					for range 2 {
						storage.Lock()
						if l.Fence() < storage.highest {
							storage.refused++
						} else {
							storage.highest = l.Fence()
							storage.accepted++
							if o := storage.owner[l.Fence()]; o != "" && o != l.Guard().Owner {
								t.Errorf("fence %d had two owners", l.Fence())
							}
							storage.owner[l.Fence()] = l.Guard().Owner
						}
						storage.Unlock()
						time.Sleep(time.Millisecond)
					}
					return nil
				})
			}
		})
	}
	for i := range testenv.Form(4, 12) {
		time.Sleep(200 * time.Millisecond)
		switch {
		case i%4 == 3:
			server.Stop()
			server.Restart()
		default:
			_ = admin.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub").Err()
		}
	}
	storage.Lock()
	before := storage.accepted
	storage.Unlock()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		storage.Lock()
		going := storage.accepted > before+10
		storage.Unlock()
		if going {
			break
		}
	}
	stop()
	done.Wait()
	t.Logf("%d writes accepted, %d refused", storage.accepted, storage.refused)
	if storage.accepted <= before+10 {
		t.Fatalf("after the faults nothing goes on: %d writes, then %d", before, storage.accepted)
	}
}
