package e2e

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

// TestWorkerKilledAtAnyRequestLosesNothing kills workers with SIGKILL before and after any of their requests to Redis, and at random
// times, while other workers continue. Each change must have exactly one result, and each app must receive all changes in order.
func TestWorkerKilledAtAnyRequestLosesNothing(t *testing.T) {
	if !testenv.All() {
		t.Parallel()
	}
	s := newStorm(t, durable...)
	f := s.follow()
	kills, atOnce := testenv.Soak(testenv.Form(6, 28), 1000), 4
	began := time.Now()
	killed := s.killWorkers(kills, atOnce)
	t.Logf("%d kills in %v: %v", kills, time.Since(began).Round(time.Second), killed)
	for _, moment := range []string{beforeRequest, afterRequest, afterReply} {
		if killed[moment] == 0 {
			t.Errorf("no worker was killed %s", moment)
		}
	}
	s.finish(f)
}

// killWorkers starts kills workers during the storm, atOnce at a time, waits until each is killed, and counts the kills by moment.
func (s *storm) killWorkers(kills, atOnce int) map[string]int {
	s.t.Helper()
	random := rand.New(rand.NewPCG(s.seed, 1))
	planned := make(chan kill, kills)
	for n := range kills {
		k := kill{
			moment: []string{beforeRequest, afterRequest, afterReply, atRandom}[n%4], request: 1 + random.Int64N(150),
			later: time.Duration(random.IntN(30)) * time.Millisecond, within: 20 * time.Second,
		}
		if k.moment == atRandom {
			k.within = 300*time.Millisecond + time.Duration(random.IntN(1200))*time.Millisecond
		}
		planned <- k
	}
	close(planned)
	pushing, stop := context.WithCancel(s.t.Context())
	defer stop()
	var g, workers errgroup.Group
	g.Go(func() error { return s.run(pushing) })
	var mu sync.Mutex
	killed := map[string]int{}
	for range atOnce {
		workers.Go(func() error {
			for k := range planned {
				moment, err := s.killWorker(k)
				if err != nil {
					return err
				}
				mu.Lock()
				killed[moment]++
				mu.Unlock()
			}
			return nil
		})
	}
	err := workers.Wait()
	stop()
	proctest.Must(0, err)(s.t)
	proctest.Must(0, g.Wait())(s.t)
	return killed
}

// finish starts two workers to process the remaining changes, and checks the outcome.
func (s *storm) finish(f *follower) {
	s.t.Helper()
	for range 2 {
		proctest.Start(s.t, append([]string{"serve"}, s.serve()...)...)
	}
	s.assertComplete(f)
}

// assertComplete waits until the running workers are done, and checks that no result is lost or duplicated, that no app has
// a gap in its results, and that nothing is left over.
func (s *storm) assertComplete(f *follower) {
	s.t.Helper()
	f.await(s.t, s.confirmed())
	f.await(s.t, s.pushAll()) // these syncs also clean up after killed workers
	proctest.Eventually(s.t, func() bool { return isSettled(s.client) }, "changes that Redis accepted without confirming are done, too")
	s.assertNothingLeft()
	s.assertTrees()

	kept := proctest.Must(s.client.XRange(s.t.Context(), events.DefaultNamespace.Results(), "-", "+").Result())(s.t)
	proctest.Eventually(s.t, func() bool { return f.hasRead(kept[len(kept)-1].ID) }, "the consumer has read all results")
	lost, duplicated := s.unsettled(f)
	counts, unconfirmed := f.resultCounts(), 0
	for _, a := range s.sent {
		if counts[a.id] == 1 && !a.confirmed {
			unconfirmed++
		}
	}
	if lost != 0 || duplicated != 0 {
		s.t.Errorf("%d results lost and %d duplicated, want none", lost, duplicated)
	}
	var entries []string
	for _, entry := range kept {
		entries = append(entries, entry.ID)
	}
	if !slices.Equal(entries, f.entries) {
		s.t.Errorf("the stream has %d results and the consumer received %d, want the same; only in the stream: %q; only received: %q",
			len(entries), len(f.entries), without(entries, f.entries), without(f.entries, entries))
	}
	l := s.audit(f.received(), false)
	if n := s.behind(l); n != 0 {
		s.t.Errorf("%d apps did not receive the head of a ref", n)
	}
	s.t.Logf("%d pushes (%d forced), %d changes, %d results (%d coalesced, %d of unconfirmed changes): %d lost, %d duplicated",
		s.pushes, s.forced, len(s.sent), l.results, l.coalesced, unconfirmed, lost, duplicated)
}

// without returns those of a that are not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(one string) bool { return slices.Contains(b, one) })
}

// confirmed returns the IDs of the changes that Redis has confirmed.
func (s *storm) confirmed() []string {
	var ids []string
	for _, a := range s.sent {
		if a.confirmed {
			ids = append(ids, a.id)
		}
	}
	return ids
}

// awaitMore waits for n more results.
func (f *follower) awaitMore(t *testing.T, n int) {
	t.Helper()
	want := len(f.received()) + n
	proctest.Eventually(t, func() bool { return len(f.received()) >= want }, "%d more results", n)
}
