package e2e

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
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

// TestWorkerKilledAtAnyStepLosesNothing kills workers with SIGKILL before and after every step, and at random times, while
// other workers continue. Each change must have exactly one result, and each app must receive all changes in order.
func TestWorkerKilledAtAnyStepLosesNothing(t *testing.T) {
	if !testenv.All() {
		t.Parallel()
	}
	s := newStorm(t, durable...)
	f := s.follow()
	kills, atOnce := testenv.Soak(testenv.Form(6, 28), 1000), 4
	began := time.Now()
	killed := s.killWorkers(kills, atOnce)
	t.Logf("%d kills in %v: %v", kills, time.Since(began).Round(time.Second), killed)
	var missed []string
	for _, p := range killPoints {
		if killed[p.name] == 0 {
			missed = append(missed, p.name)
		}
	}
	// In a short storm, a worker may not reach its kill point, for example because it never parks a message.
	if len(missed) > 0 && (testenv.Soaking() || len(missed) == len(killPoints)) {
		t.Errorf("no worker was killed at %q", missed)
	}
	s.finish(f)
}

// killWorkers starts kills workers during the storm, atOnce at a time, waits until each is killed, and counts the kills by
// kill point.
func (s *storm) killWorkers(kills, atOnce int) map[string]int {
	s.t.Helper()
	type kill struct {
		point string
		pass  int
		after time.Duration
	}
	random := rand.New(rand.NewPCG(s.seed, 1))
	planned := make(chan kill, kills)
	for n := range kills {
		// Three of four kills are at a kill point, in turn.
		if n%4 == 3 {
			planned <- kill{atRandom, 0, 300*time.Millisecond + time.Duration(random.IntN(1200))*time.Millisecond}
			continue
		}
		p := killPoints[(n-n/4)%len(killPoints)]
		planned <- kill{p.name, 1 + random.IntN(p.passes), 20 * time.Second}
	}
	close(planned)
	args := append(s.serve(), scriptsFlag(s.t))
	dir := s.t.TempDir()
	pushing, stop := context.WithCancel(s.t.Context())
	defer stop()
	var g, workers errgroup.Group
	g.Go(func() error { return s.run(pushing) })
	var mu sync.Mutex
	killed := map[string]int{}
	for range atOnce {
		workers.Go(func() error {
			for k := range planned {
				byItself, err := runUntilKilled(dir, args, k.point, k.pass, k.after)
				if err != nil {
					return err
				}
				mu.Lock()
				if !byItself {
					k.point = atRandom
				}
				killed[k.point]++
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
	proctest.Eventually(s.t, s.idle, "changes that Redis accepted without confirming are done, too")
	s.assertNothingLeft()
	s.assertTrees()

	kept := proctest.Must(s.client.XRange(s.t.Context(), events.DefaultNamespace.Results(), "-", "+").Result())(s.t)
	proctest.Eventually(s.t, func() bool { return len(f.received()) >= len(kept) }, "the consumer has %d results", len(kept))
	counts := f.resultCounts()
	lost, duplicated, unconfirmed := 0, 0, 0
	for _, a := range s.sent {
		switch n := counts[a.id]; {
		case n > 1:
			duplicated++
		case n == 0 && a.confirmed:
			lost++
		case n == 1 && !a.confirmed:
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
		s.t.Errorf("the stream has %d results and the consumer received %d, want the same", len(entries), len(f.entries))
	}
	l := s.audit(f.received(), false)
	if n := s.behind(l.lastCommit); n != 0 {
		s.t.Errorf("%d apps did not receive the head of a ref", n)
	}
	s.t.Logf("%d pushes (%d forced), %d changes, %d results (%d coalesced, %d of unconfirmed changes): %d lost, %d duplicated",
		s.pushes, s.forced, len(s.sent), l.results, l.coalesced, unconfirmed, lost, duplicated)
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

// TestRedisKilledUnderLoadLosesNothing kills and restarts a Redis that syncs every write to disk.
func TestRedisKilledUnderLoadLosesNothing(t *testing.T) {
	if !testenv.All() {
		t.Parallel()
	}
	s := newStorm(t, durable...)
	f := s.follow()
	restarts := testenv.Soak(testenv.Form(1, 2), 20)
	for range 3 {
		proctest.Start(t, append([]string{"serve"}, s.serve()...)...)
	}
	pushing, stop := context.WithCancel(t.Context())
	defer stop()
	var g errgroup.Group
	g.Go(func() error { return s.run(pushing) })
	random := rand.New(rand.NewPCG(s.seed, 1))
	for n := range restarts {
		f.awaitMore(t, 20)
		s.server.Stop()
		time.Sleep(time.Duration(random.IntN(400*(1+n%4))) * time.Millisecond) // outages of different lengths
		s.server.Restart()
	}
	f.awaitMore(t, 20)
	stop()
	proctest.Must(0, g.Wait())(t)
	t.Logf("%d restarts of Redis", restarts)
	s.finish(f)
}

// awaitMore waits for n more results.
func (f *follower) awaitMore(t *testing.T, n int) {
	t.Helper()
	want := len(f.received()) + n
	proctest.Eventually(t, func() bool { return len(f.received()) >= want }, "%d more results", n)
}

// TestNextChangeRepairsWritesLostByRedis simulates power failures of a Redis that syncs once a second, so that it loses
// recent changes and results. No app may be left with a gap: the result of the next change to a repository covers everything
// since the last result that Redis still has.
func TestNextChangeRepairsWritesLostByRedis(t *testing.T) {
	testenv.Long(t)
	s := newStorm(t, "--appendonly", "yes", "--appendfsync", "everysec")
	if !s.server.Real {
		t.Skip("the embedded Redis does not write to disk")
	}
	f := s.follow()
	cuts := testenv.Soak(1, 10)
	for range 3 {
		proctest.Start(t, append([]string{"serve"}, s.serve()...)...)
	}
	pushing, stop := context.WithCancel(t.Context())
	defer stop()
	var g errgroup.Group
	g.Go(func() error { return s.run(pushing) })
	var gone time.Duration
	for n := range cuts {
		f.awaitMore(t, 20)
		written, since := s.written(), time.Now()
		time.Sleep(900 * time.Millisecond) // most of the second between two syncs
		f.awaitMore(t, 1)
		if n == cuts-1 { // no push of the storm may repair the last loss
			stop()
			proctest.Must(0, g.Wait())(t)
		}
		s.server.Stop()
		gone += time.Since(since)
		for file, size := range written {
			proctest.Must(0, os.Truncate(file, size))(t)
		}
		s.server.Restart()
	}
	behind := s.behind(s.recorded)
	f.await(t, s.pushAll())
	proctest.Eventually(t, s.idle, "the changes that Redis still has are done")
	s.assertNothingLeft()
	s.assertTrees()

	lost, twice := 0, 0
	counts := f.resultCounts()
	for _, a := range s.sent {
		switch n := counts[a.id]; {
		case n > 1:
			twice++
		case n == 0 && a.confirmed:
			lost++
		}
	}
	forgotten := s.forgotten(f)
	if forgotten == 0 {
		t.Error("Redis lost nothing, so the test proves nothing")
	}
	l := s.audit(f.received(), true)
	if received, recorded := s.behind(l.lastCommit), s.behind(s.recorded); received != 0 || recorded != 0 {
		t.Errorf("%d apps did not receive the head of a ref, and the state has an old one for %d", received, recorded)
	}
	t.Logf("%d failures, %v in total: of %d changes, %d were lost and %d have two results; of %d results, %d were lost after the consumer received them; "+
		"%d results overlap earlier ones; the state of %d apps and refs was behind until the next change",
		cuts, gone.Round(time.Millisecond), len(s.sent), lost, twice, l.results, forgotten, l.overlaps, behind)
}

// idle reports whether every change in the stream has been read and finished.
func (s *storm) idle() bool {
	s.t.Helper()
	changes := events.DefaultNamespace.Changes()
	stream := proctest.Must(s.client.XInfoStream(s.t.Context(), changes).Result())(s.t)
	groups := proctest.Must(s.client.XInfoGroups(s.t.Context(), changes).Result())(s.t)
	return groups[0].Pending == 0 && groups[0].LastDeliveredID == stream.LastGeneratedID
}

// written returns the sizes of Redis's append-only files.
func (s *storm) written() map[string]int64 {
	s.t.Helper()
	dir := proctest.Must(s.client.ConfigGet(s.t.Context(), "dir").Result())(s.t)["dir"]
	sizes := map[string]int64{}
	for _, file := range proctest.Must(filepath.Glob(filepath.Join(dir, "appendonlydir", "*.incr.aof")))(s.t) {
		sizes[file] = proctest.Must(os.Stat(file))(s.t).Size()
	}
	if len(sizes) != 1 {
		s.t.Fatalf("%d append-only files in %s, want one", len(sizes), dir)
	}
	return sizes
}

// forgotten counts the results that the consumer received and Redis lost.
func (s *storm) forgotten(f *follower) int {
	s.t.Helper()
	kept := map[string]bool{}
	for _, entry := range proctest.Must(s.client.XRange(s.t.Context(), events.DefaultNamespace.Results(), "-", "+").Result())(s.t) {
		kept[entry.ID] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, entry := range f.entries {
		if !kept[entry] {
			n++
		}
	}
	return n
}
