package locking_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/locking"
)

func TestMutualExclusionUnderStress(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	observed := &tally{}
	var processes []process
	for i := range 4 {
		processes = append(processes, start(t, server, fmt.Sprint("w", i), func(cfg *locking.Config) { cfg.Observer = observed }))
	}
	const keys, rounds = 3, 15
	var counter [keys]int // guarded only by the locks
	var fences [keys]uint64
	var done sync.WaitGroup
	var mu sync.Mutex
	granted := 0
	for g := range 24 {
		done.Go(func() {
			p := processes[g%len(processes)]
			for range rounds {
				k := rand.IntN(keys)
				ctx, cancel := context.WithCancel(t.Context())
				if rand.IntN(4) == 0 { // cancel the request
					time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
				}
				err := p.Do(ctx, locking.Request{Key: fmt.Sprint(k)}, func(_ context.Context, l *locking.Lease) error {
					if l.Fence() <= fences[k] {
						t.Errorf("fence %d follows %d", l.Fence(), fences[k])
					}
					fences[k] = l.Fence()
					counter[k]++
					return nil
				})
				cancel()
				switch {
				case err == nil:
					mu.Lock()
					granted++
					mu.Unlock()
				case !errors.Is(err, context.Canceled):
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
	if total := counter[0] + counter[1] + counter[2]; total != granted {
		t.Fatalf("%d changes were made in %d grants", total, granted)
	}
	for k := range keys {
		nothingQueued(t, server, processes[k], fmt.Sprint(k))
	}
	seen := observed.all()
	// A request that is cancelled early does not begin to wait.
	if n := seen["began"]; n < granted || n > 24*rounds || seen["acquired"]+seen["cancelled"] != n || seen["released"] < seen["acquired"] {
		t.Fatalf("observed %v of %d requests, %d of them granted", seen, 24*rounds, granted)
	}
}

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
