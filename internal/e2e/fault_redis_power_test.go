package e2e

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// TestPowerCutsOfRedisLoseNothingConfirmed cuts the power of a Redis with the settings that are shipped, under a load from all kinds of
// publishers. Every change that was confirmed to its publisher ends in one result, and no result that was acknowledged vanishes or comes
// again. Some cuts are in the middle of a rewrite of the append-only file, and some tear a command. After a torn transaction Redis needs the
// remedy of docs/failure-modes.md before the next cut: it truncates its file in the middle of the transaction.
func TestPowerCutsOfRedisLoseNothingConfirmed(t *testing.T) {
	testenv.Long(t)
	s, server := newPowerCutStorm(t, "always")
	cuts := testenv.Soak(20, 100)
	f, acked, publishers := s.follow(), s.acknowledge(), s.publish()
	random := rand.New(rand.NewPCG(s.seed, 1))
	var unflushed, lost int64
	torn := false
	gone := s.under(t, func(n int) bool {
		if torn {
			rewriteAOF(t, s.client)
		}
		f.awaitMore(t, 20)
		if n%4 == 3 {
			proctest.Eventually(t, func() bool { return s.client.BgRewriteAOF(t.Context()).Err() == nil }, "a rewrite begins")
		}
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		torn = random.IntN(2) == 0
		before, after := server.PowerCut(torn)
		unflushed, lost = unflushed+before, lost+after
		return n+1 < cuts
	})
	publishers.end()
	t.Logf("%d power cuts, %v: %d bytes were not flushed, %d of them are lost; confirmed by XADD, command, HTTP and hook: %d, %d, %d, %d", cuts, gone.Round(time.Millisecond),
		unflushed, lost, publishers.counts[0].Load(), publishers.counts[1].Load(), publishers.counts[2].Load(), publishers.counts[3].Load())
	for kind := range publishers.counts {
		if publishers.counts[kind].Load() == 0 {
			t.Errorf("publisher %d published nothing", kind)
		}
	}
	if unflushed == 0 {
		t.Error("no power cut met a write that was not flushed, so the test proves nothing")
	}
	s.assertComplete(f)
	acked.assertKept(s)
}

// rewriteAOF lets Redis write its append-only file anew.
func rewriteAOF(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	proctest.Eventually(t, func() bool { return client.BgRewriteAOF(t.Context()).Err() == nil }, "a rewrite begins")
	proctest.Eventually(t, func() bool {
		info := client.Info(t.Context(), "persistence").Val()
		return strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0") && strings.Contains(info, "aof_last_bgrewrite_status:ok")
	}, "the rewrite ends")
}

// under runs three workers and the storm, and calls cut, which stops Redis, and starts Redis again after a while, as long as cut returns
// true. The storm ends before Redis returns for the last time, so that no push repairs the last loss. It returns how long Redis was away.
func (s *storm) under(t *testing.T, cut func(n int) (again bool)) (gone time.Duration) {
	t.Helper()
	for range 3 {
		proctest.Start(t, append([]string{"serve"}, s.serve()...)...)
	}
	pushing, stop := context.WithCancel(t.Context())
	defer stop()
	var g errgroup.Group
	g.Go(func() error { return s.run(pushing) })
	random := rand.New(rand.NewPCG(s.seed, 2))
	for n, again := 0, true; again; n++ {
		again = cut(n)
		began := time.Now()
		if !again {
			stop()
		}
		time.Sleep(time.Duration(random.IntN(100*(1+n%4))) * time.Millisecond) // outages of different lengths
		s.server.Restart()
		gone += time.Since(began)
	}
	proctest.Must(0, g.Wait())(t)
	return gone
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
