package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

// follower reads the stream of results as a consumer does.
type follower struct {
	storm   *storm
	mu      sync.Mutex
	entries []string
	results []events.Result
	stop    context.CancelFunc
	done    sync.WaitGroup
}

func (s *storm) follow() *follower {
	ctx, stop := context.WithCancel(context.Background())
	f := &follower{storm: s, stop: stop}
	client := redistest.Open(s.t, s.url)
	f.done.Go(func() {
		for from := "0"; ctx.Err() == nil; {
			read, err := client.XRead(ctx, &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Results(), from}, Count: 1000, Block: time.Second}).Result()
			if err != nil {
				pause(ctx, 10*time.Millisecond)
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

// resultCounts returns the number of results of each change, by change ID.
func (f *follower) resultCounts() map[string]int {
	counts := map[string]int{}
	for _, r := range f.received() {
		for _, id := range r.Deliveries {
			counts[id]++
		}
	}
	return counts
}

// received returns the results read until now.
func (f *follower) received() []events.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.results)
}

// hasRead reports whether an entry is the last one that was read.
func (f *follower) hasRead(entry string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.entries) > 0 && f.entries[len(f.entries)-1] == entry
}

// await waits until all these changes have results. It fails the test after three minutes without progress.
func (f *follower) await(t *testing.T, ids []string) {
	t.Helper()
	missing, without := len(ids), []string(nil)
	const limit = 3 * time.Minute
	for progress := time.Now(); time.Since(progress) < limit; time.Sleep(20 * time.Millisecond) {
		counts := f.resultCounts()
		without = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return counts[id] > 0 })
		if len(without) == 0 {
			return
		}
		if len(without) < missing {
			missing, progress = len(without), time.Now()
		}
	}
	t.Fatalf("%d of %d changes have no result, and none has come for %v: %q%s", missing, len(ids), limit, without, f.storm.unfinished())
}

// unfinished describes the changes that are not done, and what Redis keeps of repositories that is not done.
func (s *storm) unfinished() string {
	s.t.Helper()
	ctx, namespace := context.Background(), events.DefaultNamespace
	var text strings.Builder
	groups, err := s.client.XInfoGroups(ctx, namespace.Changes()).Result()
	fmt.Fprintf(&text, "\nRedis' clock is %d; groups: %+v, error: %v", s.client.Time(ctx).Val().UnixMilli(), groups, err)
	pending := s.client.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: namespace.Changes(), Group: events.WorkersGroup, Start: "-", End: "+", Count: 200}).Val()
	for _, p := range pending {
		entry, due := s.client.XRange(ctx, namespace.Changes(), p.ID, p.ID).Val(), s.client.ZScore(ctx, string(namespace)+"due:changes:"+events.WorkersGroup, p.ID).Val()
		fmt.Fprintf(&text, "\npending: %s of %q, delivered %d times, due at %.0f: %v", p.ID, p.Consumer, p.RetryCount, due, entry)
	}
	for _, repo := range s.repos {
		fields := s.client.HGetAll(ctx, namespace.Repo(proctest.Must(events.ParseRepoPath(repo))(s.t))).Val()
		fmt.Fprintf(&text, "\n%s: remote has %.12s and %.12s", repo, s.git.Head(repo, stormRefs[0]), s.git.Head(repo, stormRefs[1]))
		for name, value := range fields {
			for _, prefix := range []string{"given:", "head:", "awaited", "chain:", "trouble", "asked:", "tombstone", "synced"} {
				if strings.HasPrefix(name, prefix) {
					fmt.Fprintf(&text, "\n  %s = %s", name, value)
				}
			}
		}
	}
	return text.String()
}

// chain identifies the sequence of results for one app and ref.
type chain struct{ repo, ref, app string }

// ledger summarizes results.
type ledger struct {
	results, coalesced, overlaps int
	last                         map[chain]string // last commit
}

// audit checks each result: it belongs to a published change, to the poll of a watch or to a look for an announced commit, starts where the app's previous result ended, and lists exactly
// the files that differ. If lossy, Redis may have lost results, so a result may also start at an earlier one and overlap.
func (s *storm) audit(results []events.Result, lossy bool) ledger {
	s.t.Helper()
	l := ledger{last: map[chain]string{}}
	commits := map[chain][]string{}
	published := map[string]bool{}
	for _, a := range s.sent {
		published[a.id] = true
	}
	for _, r := range results {
		c := chain{r.Repo.String(), r.Ref.String(), r.App}
		if r.Type == events.ResultPolled {
			continue
		}
		if r.Type != events.ResultSynced || len(r.Deliveries) != 1 ||
			!published[r.Deliveries[0]] && r.App != watchingApp && !strings.HasPrefix(r.Deliveries[0], "look/") {
			s.t.Errorf("%v: unexpected result %s for %q: %s", c, r.Type, r.Deliveries, r.Error)
			continue
		}
		l.results++
		if r.Before == r.After {
			l.coalesced++
		}
		if last := l.last[c]; r.Before != last {
			if !lossy || !slices.Contains(commits[c], r.Before) && r.Before != "" {
				s.t.Errorf("%v: result from %q to %q follows one that ended at %q", c, r.Before, r.After, last)
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
		commits[c] = append(commits[c], r.After)
	}
	return l
}

// behind counts the combinations of repository, ref and app whose last result is not of the head of the ref.
func (s *storm) behind(l ledger) int {
	n := 0
	for _, repo := range s.repos {
		for _, ref := range stormRefs {
			for _, app := range stormApps {
				if l.last[chain{repo, ref, app}] != s.git.Head(repo, ref) {
					n++
				}
			}
		}
	}
	return n
}

// difference returns the files that differ, sorted by path.
func difference(before, after map[string]string) []events.File {
	var files []events.File
	for path, content := range after {
		switch old, existed := before[path]; {
		case !existed:
			files = append(files, events.File{Path: path, Status: events.FileAdded})
		case old != content:
			files = append(files, events.File{Path: path, Status: events.FileModified})
		}
	}
	for path := range before {
		if _, exists := after[path]; !exists {
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
