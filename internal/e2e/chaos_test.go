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

// soaking reports whether LOCKSTEP_SOAK asks for the full length of soak tests. LOCKSTEP_SEED repeats the pushes and
// kills of a run, but not their timing.
func soaking() bool { return os.Getenv("LOCKSTEP_SOAK") != "" }

var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

// TestWorkerKilledAtAnyStepLosesNothing kills workers with SIGKILL before and after every step, and at
// random, while others go on. Each change must be answered once, and each app told all, in order.
func TestWorkerKilledAtAnyStepLosesNothing(t *testing.T) {
	if !testenv.All() {
		t.Parallel()
	}
	s := newStorm(t, durable...)
	f := s.follow()
	kills, atOnce := testenv.Form(6, 28), 4
	if soaking() {
		kills = 1000
	}
	began := time.Now()
	dead := s.strike(kills, atOnce)
	t.Logf("%d kills in %v: %v", kills, time.Since(began).Round(time.Second), dead)
	var missed []string
	for _, m := range moments {
		if dead[m.name] == 0 {
			missed = append(missed, m.name)
		}
	}
	// Whether a worker that waits to die of it is the one who publishes, parks a message, settles siblings or
	// has a lease to release depends on who crowds whom, and on how much the machine gets done meanwhile. A
	// short storm may be over before.
	if len(missed) > 0 && (soaking() || len(missed) == len(moments)) {
		t.Errorf("no worker died %q", missed)
	}
	s.assertCalm(f)
}

// strike has so many workers die, some at a time, while the storm blows, and counts their deaths by
// moment.
func (s *storm) strike(kills, atOnce int) map[string]int {
	s.t.Helper()
	type blow struct {
		moment string
		pass   int
		after  time.Duration
	}
	random := rand.New(rand.NewPCG(s.seed, 1))
	blows := make(chan blow, kills)
	for n := range kills {
		// Three in four at a named moment. Those take their turns, so that each has its share.
		if n%4 == 3 {
			blows <- blow{atRandom, 0, 300*time.Millisecond + time.Duration(random.IntN(1200))*time.Millisecond}
			continue
		}
		m := moments[(n-n/4)%len(moments)]
		blows <- blow{m.name, 1 + random.IntN(m.passes), 20 * time.Second}
	}
	close(blows)
	args := append(s.serve(), scriptsFlag(s.t))
	dir := s.t.TempDir()
	storming, calm := context.WithCancel(s.t.Context())
	defer calm()
	var g, workers errgroup.Group
	g.Go(func() error { return s.blow(storming) })
	var mu sync.Mutex
	dead := map[string]int{}
	for range atOnce {
		workers.Go(func() error {
			for b := range blows {
				byItself, err := die(dir, args, b.moment, b.pass, b.after)
				if err != nil {
					return err
				}
				mu.Lock()
				if !byItself {
					b.moment = atRandom
				}
				dead[b.moment]++
				mu.Unlock()
			}
			return nil
		})
	}
	err := workers.Wait()
	calm()
	proctest.Must(0, err)(s.t)
	proctest.Must(0, g.Wait())(s.t)
	return dead
}

// assertCalm has two workers finish what is left, and then asks for the zeroes.
func (s *storm) assertCalm(f *follower) {
	s.t.Helper()
	for range 2 {
		proctest.Start(s.t, append([]string{"serve"}, s.serve()...)...)
	}
	s.assertWhole(f)
}

// assertWhole asks of whoever works now for the zeroes: no result lost, none doubled, no hole in what any app was
// told, nothing left behind.
func (s *storm) assertWhole(f *follower) {
	s.t.Helper()
	f.await(s.t, s.certain())
	f.await(s.t, s.calm()) // whose syncs sweep up what the dead have left
	proctest.Eventually(s.t, s.idle, "what Redis has taken without saying so is done, too")
	s.assertNothingLeft()
	s.assertTrees()

	kept := proctest.Must(s.client.XRange(s.t.Context(), events.DefaultNamespace.Results(), "-", "+").Result())(s.t)
	proctest.Eventually(s.t, func() bool { return len(f.soFar()) >= len(kept) }, "a consumer has been given %d results", len(kept))
	answered := f.answered()
	lost, doubled, uncertain := 0, 0, 0
	for _, a := range s.sent {
		switch n := answered[a.id]; {
		case n > 1:
			doubled++
		case n == 0 && a.certain:
			lost++
		case n == 1 && !a.certain:
			uncertain++
		}
	}
	if lost != 0 || doubled != 0 {
		s.t.Errorf("%d results lost and %d doubled, want none", lost, doubled)
	}
	var entries []string
	for _, entry := range kept {
		entries = append(entries, entry.ID)
	}
	if !slices.Equal(entries, f.entries) {
		s.t.Errorf("the stream has %d results, and a consumer was given %d: they should be the same", len(entries), len(f.entries))
	}
	l := s.audit(f.soFar(), false)
	if n := s.behind(l.toldOf); n != 0 {
		s.t.Errorf("%d apps were not told where a ref is", n)
	}
	s.t.Logf("%d pushes (%d by force), %d changes, %d results (%d of them coalesced), %d answers to changes that Redis did not confirm: %d lost, %d doubled",
		s.pushes, s.forced, len(s.sent), l.results, l.coalesced, uncertain, lost, doubled)
}

// certain are the ids of the changes that Redis has confirmed.
func (s *storm) certain() []string {
	var ids []string
	for _, a := range s.sent {
		if a.certain {
			ids = append(ids, a.id)
		}
	}
	return ids
}

// TestRedisKilledUnderLoadLosesNothing kills a Redis that syncs every write to disk, and starts it again.
func TestRedisKilledUnderLoadLosesNothing(t *testing.T) {
	testenv.Long(t)
	s := newStorm(t, durable...)
	f := s.follow()
	restarts := 2
	if soaking() {
		restarts = 20
	}
	for range 3 {
		proctest.Start(t, append([]string{"serve"}, s.serve()...)...)
	}
	storming, calm := context.WithCancel(t.Context())
	defer calm()
	var g errgroup.Group
	g.Go(func() error { return s.blow(storming) })
	random := rand.New(rand.NewPCG(s.seed, 1))
	for n := range restarts {
		f.awaitMore(t, 20)
		s.server.Stop()
		// Not a wait for something: how long Redis is away is what differs from one time to the next.
		time.Sleep(time.Duration(random.IntN(400*(1+n%4))) * time.Millisecond)
		s.server.Restart()
	}
	f.awaitMore(t, 20)
	calm()
	proctest.Must(0, g.Wait())(t)
	t.Logf("%d restarts of Redis", restarts)
	s.assertCalm(f)
}

// awaitMore returns when so many more results have come.
func (f *follower) awaitMore(t *testing.T, n int) {
	t.Helper()
	want := len(f.soFar()) + n
	proctest.Eventually(t, func() bool { return len(f.soFar()) >= want }, "%d more results", n)
}

// TestNextChangeRepairsWritesLostByRedis cuts power under a Redis that syncs once a second: what it wrote
// since is gone when it is back. Changes and results are lost with it. No app may be left with a hole:
// the next change to a repository tells each app all since the last result that Redis remembers.
func TestNextChangeRepairsWritesLostByRedis(t *testing.T) {
	testenv.Long(t)
	s := newStorm(t, "--appendonly", "yes", "--appendfsync", "everysec")
	if !s.server.Real {
		t.Skip("the embedded Redis writes nothing down")
	}
	f := s.follow()
	cuts := 1
	if soaking() {
		cuts = 10
	}
	for range 3 {
		proctest.Start(t, append([]string{"serve"}, s.serve()...)...)
	}
	storming, calm := context.WithCancel(t.Context())
	defer calm()
	var g errgroup.Group
	g.Go(func() error { return s.blow(storming) })
	var gone time.Duration
	for n := range cuts {
		f.awaitMore(t, 20)
		written, since := s.written(), time.Now()
		time.Sleep(900 * time.Millisecond) // of the second between two syncs
		f.awaitMore(t, 1)
		if n == cuts-1 { // what is lost now no push of the storm heals
			calm()
			proctest.Must(0, g.Wait())(t)
		}
		s.server.Stop()
		gone += time.Since(since)
		for file, size := range written {
			proctest.Must(0, os.Truncate(file, size))(t)
		}
		s.server.Restart()
	}
	behind := s.behind(s.remembered)
	f.await(t, s.calm())
	proctest.Eventually(t, s.idle, "all that Redis remembers of is done")
	s.assertNothingLeft()
	s.assertTrees()

	lost, twice := 0, 0
	answered := f.answered()
	for _, a := range s.sent {
		switch n := answered[a.id]; {
		case n > 1:
			twice++
		case n == 0 && a.certain:
			lost++
		}
	}
	forgotten := s.forgotten(f)
	if forgotten == 0 {
		t.Error("Redis forgot nothing: the test shows nothing")
	}
	l := s.audit(f.soFar(), true)
	if told, remembered := s.behind(l.toldOf), s.behind(s.remembered); told != 0 || remembered != 0 {
		t.Errorf("%d apps were not told where a ref is, and of %d Redis does not know it", told, remembered)
	}
	t.Logf("%d cuts of %v together: of %d changes, %d were lost and %d answered twice; of %d results, %d were forgotten after a consumer had them; "+
		"%d results told an app some of what it knew; of %d apps and refs Redis knew too little until the next change; no app has a hole",
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

// written is how much of each of its files Redis has written.
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

// forgotten is how many results a consumer has been given that are not in Redis any more.
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
