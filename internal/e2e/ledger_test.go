package e2e

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/proctest"
	"lockstep/internal/state"
)

// follower reads the stream of results as a consumer does.
type follower struct {
	mu      sync.Mutex
	entries []string
	results []events.Result
	stop    context.CancelFunc
	done    sync.WaitGroup
}

func (s *storm) follow() *follower {
	ctx, stop := context.WithCancel(context.Background())
	f := &follower{stop: stop}
	client := s.server.Client()
	f.done.Go(func() {
		for from := "0"; ctx.Err() == nil; {
			read, err := client.XRead(ctx, &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Results(), from}, Count: 1000, Block: time.Second}).Result()
			if err != nil {
				app.Sleep(ctx, 10*time.Millisecond)
				continue
			}
			f.mu.Lock()
			for _, entry := range read[0].Messages {
				from = entry.ID
				f.entries, f.results = append(f.entries, entry.ID), append(f.results, proctest.DecodeResult(s.t, entry))
			}
			f.mu.Unlock()
		}
	})
	s.t.Cleanup(func() { f.stop(); f.done.Wait() })
	return f
}

// answered is how many results there have been for each change.
func (f *follower) answered() map[string]int {
	answered := map[string]int{}
	for _, r := range f.soFar() {
		for _, id := range r.Deliveries {
			answered[id]++
		}
	}
	return answered
}

// soFar are the results that have come.
func (f *follower) soFar() []events.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.results)
}

// await returns once all these changes are answered. It fails when nothing has come for a minute.
func (f *follower) await(t *testing.T, ids []string) {
	t.Helper()
	missing := len(ids)
	for progress := time.Now(); time.Since(progress) < time.Minute; time.Sleep(20 * time.Millisecond) {
		answered := f.answered()
		n := 0
		for _, id := range ids {
			if answered[id] == 0 {
				n++
			}
		}
		if n == 0 {
			return
		}
		if n < missing {
			missing, progress = n, time.Now()
		}
	}
	t.Fatalf("%d of %d changes are not answered, and nothing has come for a minute", missing, len(ids))
}

// chain is what one app is told of one ref.
type chain struct{ repo, ref, app string }

// ledger is what the results come to.
type ledger struct {
	results, coalesced, overlaps int
	last                         map[chain]string
}

// audit checks each result against the pushes: it is of a change that was published; it goes on where
// the app's last one ended; and it lists exactly the files that differ. With lossy a result may also go on
// from an earlier one, since Redis may have forgotten the later: what the app is told twice is an overlap,
// which is no hole.
func (s *storm) audit(results []events.Result, lossy bool) ledger {
	s.t.Helper()
	l := ledger{last: map[chain]string{}}
	told := map[chain][]string{}
	published := map[string]bool{}
	for _, a := range s.sent {
		published[a.id] = true
	}
	for _, r := range results {
		c := chain{r.Repo.String(), r.Ref.String(), r.App}
		if r.Type != events.ResultSynced || len(r.Deliveries) != 1 || !published[r.Deliveries[0]] {
			s.t.Errorf("%v: %s for %q, which is not a change's being synced: %s", c, r.Type, r.Deliveries, r.Error)
			continue
		}
		l.results++
		if r.Before == r.After {
			l.coalesced++
		}
		if last := l.last[c]; r.Before != last {
			if !lossy || !slices.Contains(told[c], r.Before) && r.Before != "" {
				s.t.Errorf("%v: a hole: told of %q to %q after it was told of %q", c, r.Before, r.After, last)
			}
			l.overlaps++
		}
		from := s.trees[r.Before]
		if r.Full {
			from = nil
		}
		if want := difference(from, s.trees[r.After]); !slices.Equal(r.Files, want) {
			s.t.Errorf("%v: files from %q to %q: %v, want %v", c, r.Before, r.After, r.Files, want)
		}
		l.last[c] = r.After
		told[c] = append(told[c], r.After)
	}
	return l
}

// behind is how many apps have not been given the commit at which a ref of a repository is, of 8 × 2 × 2.
func (s *storm) behind(given func(chain) string) int {
	n := 0
	for _, repo := range s.repos {
		for _, ref := range stormRefs {
			for _, app := range stormApps {
				if given(chain{repo, ref, app}) != s.git.Head(repo, ref) {
					n++
				}
			}
		}
	}
	return n
}

// remembered is what Redis knows to have been given to an app.
func (s *storm) remembered(c chain) string {
	s.t.Helper()
	repo := proctest.Must(events.ParseRepoPath(c.repo))(s.t)
	known := proctest.Must(state.NewStore(s.client, events.DefaultNamespace).Load(s.t.Context(), repo))(s.t)
	return known.Given(c.app, proctest.Must(events.ParseRef(c.ref))(s.t))
}

// toldOf is what a consumer of the results knows an app to have been given.
func (l ledger) toldOf(c chain) string { return l.last[c] }

// difference lists the files that differ, by path.
func difference(before, after map[string]string) []events.File {
	var files []events.File
	for path, content := range after {
		switch old, was := before[path]; {
		case !was:
			files = append(files, events.File{Path: path, Status: events.FileAdded})
		case old != content:
			files = append(files, events.File{Path: path, Status: events.FileModified})
		}
	}
	for path := range before {
		if _, is := after[path]; !is {
			files = append(files, events.File{Path: path, Status: events.FileDeleted})
		}
	}
	slices.SortFunc(files, func(a, b events.File) int { return strings.Compare(a.Path, b.Path) })
	return files
}

// resultsIn returns the results in the stream.
func resultsIn(t *testing.T, client redis.UniversalClient) []events.Result {
	t.Helper()
	var results []events.Result
	for _, entry := range proctest.Must(client.XRange(context.Background(), events.DefaultNamespace.Results(), "-", "+").Result())(t) {
		results = append(results, proctest.DecodeResult(t, entry))
	}
	return results
}
