package watch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/watch"
)

const (
	left  = "acme/old" // its watches are moved to right, which has no others
	right = "acme/new"
)

// remoteOf returns the remote watched at a path. Paths in mirror/ have the remotes of acme/.
func remoteOf(repo string) string {
	return "https://example.com/" + strings.Replace(repo, "mirror/", "acme/", 1)
}

// Apps come and go, a repository is renamed, webhooks and schedulers run, all concurrently. The stream must list the
// changes in the order in which they happened, because each change and its entry are one step.
func TestStreamOrderMatchesConcurrentWrites(t *testing.T) {
	const usual = 20 * time.Millisecond
	b := newBench(t)
	var timed stopwatch
	b.client.AddHook(&timed)
	repos := []string{"acme/one", "mirror/one", left, right}
	apps := []string{"ci", "docs", "search"}
	watches := func(repo string) (all []watch.Watch) {
		for _, app := range apps {
			w := of(t, app, repo, "")
			w.URL = remoteOf(repo)
			all = append(all, w)
		}
		return all
	}
	url := remoteOf(right)
	ctx := context.Background()
	var tally struct{ put, removed, moved, accepted, stale, silenced, polled atomic.Int64 }
	b.put(of(t, "docs", "acme/calm", "")) // never changes
	ended := make(chan struct{})
	var writers, others sync.WaitGroup
	stop := sync.OnceFunc(func() {
		close(ended)
		others.Wait()
	})
	defer stop()
	for range 4 {
		writers.Go(func() {
			for range 150 {
				repo := repos[rand.IntN(3)]
				all := watches(repo)
				one := all[rand.IntN(len(all))]
				var n int
				var err error
				switch rand.IntN(8) {
				case 0, 1, 2:
					one.Depth = events.Depth(1 + rand.IntN(3))
					n, err = b.Put(ctx, one)
					tally.put.Add(int64(n))
				case 3, 4:
					n, err = b.Remove(ctx, one.Key())
					tally.removed.Add(int64(n))
				case 5:
					var keys []watch.Key
					for _, w := range watches(right) {
						keys = append(keys, w.Key())
					}
					_, err = b.Remove(ctx, keys...)
				case 6:
					n, err = b.Move(ctx, path(t, left), path(t, right), url)
					tally.moved.Add(int64(n))
				default:
					err = b.Silence(ctx, one, "gone")
					tally.silenced.Add(1)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	running := func() bool {
		select {
		case <-ended:
			return false
		default:
			return true
		}
	}
	for hook := range 3 {
		others.Go(func() {
			for i := 0; running(); i++ {
				remote := remoteOf(repos[rand.IntN(len(repos))])
				found, err := b.ByRemote(ctx, remote)
				if err != nil {
					t.Error(err)
					return
				}
				in := watch.Delivery{Versions: map[string]string{watch.RemoteKey(remote): found.Version}}
				for n, w := range found.Watches {
					// The ID contains the version that the change was computed from.
					in.Changes = append(in.Changes, pushed(t, w, fmt.Sprintf("%s/%d/%d/%d", found.Version, hook, i, n)))
				}
				switch verdict, err := b.Accept(ctx, in); {
				case err != nil:
					t.Error(err)
					return
				case verdict == watch.Accepted:
					tally.accepted.Add(int64(len(in.Changes)))
				default:
					tally.stale.Add(1)
				}
			}
		})
	}
	for range 2 {
		others.Go(func() {
			for running() {
				n, _, err := b.EnqueueDue(ctx, 1+rand.IntN(3), usual)
				if err != nil {
					t.Error(err)
					return
				}
				tally.polled.Add(int64(n))
			}
		})
	}
	writers.Wait()
	for tally.polled.Load() < 30 { // the remaining repositories are polled repeatedly
		n, next, err := b.EnqueueDue(ctx, 10, usual)
		if err != nil {
			t.Fatal(err)
		}
		tally.polled.Add(int64(n))
		if next > time.Second {
			t.Fatalf("acme/calm is watched, but the next poll is in %v", next)
		}
		time.Sleep(next)
	}
	stop()
	b.checkOrder(usual, time.Duration(timed.longest.Load()))
	b.checkRemotes(t)
	for name, n := range map[string]*atomic.Int64{
		"put": &tally.put, "removed": &tally.removed, "moved": &tally.moved, "accepted": &tally.accepted, "polled": &tally.polled,
	} {
		if n.Load() == 0 {
			t.Errorf("nothing was %s, so the test proves nothing", name)
		}
	}
	t.Logf("put %d, removed %d, moved %d, accepted %d, stale %d, silenced %d, polled %d", tally.put.Load(), tally.removed.Load(),
		tally.moved.Load(), tally.accepted.Load(), tally.stale.Load(), tally.silenced.Load(), tally.polled.Load())
}

// stopwatch measures the slowest Redis command.
type stopwatch struct{ longest atomic.Int64 } // ns

func (s *stopwatch) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *stopwatch) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		began := time.Now()
		err := next(ctx, cmd)
		for took := int64(time.Since(began)); ; {
			longest := s.longest.Load()
			if took <= longest || s.longest.CompareAndSwap(longest, took) {
				return err
			}
		}
	}
}

func (s *stopwatch) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// story is the state of a repository according to the stream entries read so far.
type story struct {
	watched bool
	relied  *relied
	queued  int64 // ms: when a poll was last requested
}

// relied tracks the versions used by pushes to one remote.
type relied struct {
	version string          // of the last push since the last write
	past    map[string]bool // outdated versions
}

// written records a write, which outdates the current version.
func (s *story) written(watched bool) {
	s.relied.past[s.relied.version], s.relied.version, s.watched = true, "", watched
}

// checkOrder replays the stream. No push may use an outdated version or follow the removal of the last watch, and no
// repository may be polled twice in its interval. The registry must end up in the state of the last entries, with a poll
// scheduled for each watched repository. No command took longer than longest.
func (b *bench) checkOrder(usual, longest time.Duration) {
	b.t.Helper()
	ctx := context.Background()
	entries, err := b.client.XRange(ctx, events.DefaultNamespace.Changes(), "-", "+").Result()
	if err != nil {
		b.t.Fatal(err)
	}
	stories, places := map[string]*story{}, map[string]*relied{}
	of := func(repo string) *story {
		place := watch.RemoteKey(remoteOf(repo))
		if places[place] == nil {
			places[place] = &relied{past: map[string]bool{}}
		}
		if stories[repo] == nil {
			stories[repo] = &story{relied: places[place]}
		}
		return stories[repo]
	}
	for i, change := range b.changes() {
		ms, _, _ := strings.Cut(entries[i].ID, "-")
		at, _ := strconv.ParseInt(ms, 10, 64)
		s := of(change.Repo.Key())
		switch {
		case change.Type == events.ChangeDue && strings.HasPrefix(change.ID, "poll/"):
			if !s.watched {
				b.t.Errorf("entry %d: %s is polled without a watch", i, change.Repo)
			}
			// The script reads the clock before XADD assigns the ID, within the same command.
			if waited := time.Duration(at-s.queued) * time.Millisecond; waited < usual*9/10-longest-time.Millisecond {
				b.t.Errorf("entry %d: %s is polled %v after the last poll", i, change.Repo, waited)
			}
			s.queued = at
		case change.Type == events.ChangeDue:
			s.written(true)
			s.queued = at
			if change.Repo.Key() == right { // all of its watches are moved at once
				of(left).written(false)
			}
		case change.Type == events.ChangeRemoved:
			s.written(false)
		case change.Source == "/lockstep/watch": // a sync for a watch that was written
			s.written(true)
		default:
			version, _, _ := strings.Cut(change.ID, "/")
			if !s.watched {
				b.t.Errorf("entry %d: push of %s after its last watch was removed", i, change.Repo)
			}
			if s.relied.version != version { // silencing changes the version without an entry in the stream
				s.relied.past[s.relied.version], s.relied.version = true, version
			}
			if s.relied.past[version] {
				b.t.Errorf("entry %d: push of %s with an outdated version", i, change.Repo)
			}
		}
	}
	for repo, s := range stories {
		set, err := b.Of(ctx, path(b.t, repo))
		if err != nil {
			b.t.Fatal(err)
		}
		_, notPolled := b.client.ZScore(ctx, pollKey, repo).Result()
		_, notListed := b.client.ZScore(ctx, "lockstep:{0}:watch:index", repo).Result()
		if is := set.Version != ""; is != s.watched || is != (notPolled == nil) || is != (notListed == nil) {
			b.t.Errorf("%s: %d watches, polled %v, listed %v; the stream says watched: %v", repo, len(set.Watches), notPolled == nil, notListed == nil, s.watched)
		}
	}
}
