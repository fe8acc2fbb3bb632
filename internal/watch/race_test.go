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
	left  = "acme/old" // watches of it move to right, and nothing else puts any there
	right = "acme/new"
)

// remoteOf is the remote that is watched at a path: what is in mirror is acme's.
func remoteOf(repo string) string {
	return "https://example.com/" + strings.Replace(repo, "mirror/", "acme/", 1)
}

// Apps come and go, a repository is renamed, webhooks and schedulers run, all at once. What is in the stream is
// then in the order in which it happened, since whatever happens is one step with its entry there.
func TestWhateverHappensAtOnceTheStreamTellsAnOrderOfIt(t *testing.T) {
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
	b.put(of(t, "docs", "acme/calm", "")) // which nobody touches
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
				placed, err := b.At(ctx, remote)
				if err != nil {
					t.Error(err)
					return
				}
				in := watch.Intake{Source: "gh", Delivery: fmt.Sprint(hook, "-", i), Versions: map[string]string{watch.Place(remote): placed.Version}}
				for n, w := range placed.Watches {
					// Which version it relies on is told by its id.
					in.Changes = append(in.Changes, pushed(t, w, fmt.Sprintf("%s/%d/%d/%d", placed.Version, hook, i, n)))
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
				n, _, err := b.TakeDue(ctx, 1+rand.IntN(3), usual)
				if err != nil {
					t.Error(err)
					return
				}
				tally.polled.Add(int64(n))
			}
		})
	}
	writers.Wait()
	for tally.polled.Load() < 30 { // the repositories that are left have their turn again and again
		n, next, err := b.TakeDue(ctx, 10, usual)
		if err != nil {
			t.Fatal(err)
		}
		tally.polled.Add(int64(n))
		if next > time.Second {
			t.Fatalf("acme/calm is watched, and the next poll is in %v", next)
		}
		time.Sleep(next)
	}
	stop()
	b.checkOrder(usual, time.Duration(timed.longest.Load()))
	b.checkPlaces(t)
	for name, n := range map[string]*atomic.Int64{
		"put": &tally.put, "removed": &tally.removed, "moved": &tally.moved, "accepted": &tally.accepted, "polled": &tally.polled,
	} {
		if n.Load() == 0 {
			t.Errorf("nothing was %s: this has tested nothing", name)
		}
	}
	t.Logf("put %d, removed %d, moved %d, accepted %d, stale %d, silenced %d, polled %d", tally.put.Load(), tally.removed.Load(),
		tally.moved.Load(), tally.accepted.Load(), tally.stale.Load(), tally.silenced.Load(), tally.polled.Load())
}

// stopwatch knows how long the longest of all commands took.
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

// story is what the stream has told of one repository so far.
type story struct {
	watched bool
	relied  *relied
	asked   int64 // ms: when a look at the remote was last asked for
}

// relied is what pushes have relied on, of all repositories that are of one remote.
type relied struct {
	version string          // of the last push, since any of the sets was last written
	past    map[string]bool // versions that are none any more
}

// written ends what was so far.
func (s *story) written(watched bool) {
	s.relied.past[s.relied.version], s.relied.version, s.watched = true, "", watched
}

// checkOrder reads the stream from its beginning. No push may rely on watches that were others when it was
// accepted, none may come after the removal that the last watch left behind, no repository may be polled twice
// in its interval; and what is left must be what the last entries say, with a poll for each that is watched.
// No command took longer than longest.
func (b *bench) checkOrder(usual, longest time.Duration) {
	b.t.Helper()
	ctx := context.Background()
	entries, err := b.client.XRange(ctx, events.DefaultNamespace.Changes(), "-", "+").Result()
	if err != nil {
		b.t.Fatal(err)
	}
	stories, places := map[string]*story{}, map[string]*relied{}
	of := func(repo string) *story {
		place := watch.Place(remoteOf(repo))
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
				b.t.Errorf("entry %d: nobody watches %s, and it is polled", i, change.Repo)
			}
			// A script reads the clock before its entry has an id of it, and both are of the same command.
			if waited := time.Duration(at-s.asked) * time.Millisecond; waited < usual*9/10-longest-time.Millisecond {
				b.t.Errorf("entry %d: %s is polled %v after the last time", i, change.Repo, waited)
			}
			s.asked = at
		case change.Type == events.ChangeDue:
			s.written(true)
			s.asked = at
			if change.Repo.Key() == right { // all of its watches go at once, so this is a move
				of(left).written(false)
			}
		case change.Type == events.ChangeRemoved:
			s.written(false)
		default:
			version, _, _ := strings.Cut(change.ID, "/")
			if !s.watched {
				b.t.Errorf("entry %d: a push of %s after its last watch", i, change.Repo)
			}
			if s.relied.version != version { // silencing makes a version of which the stream tells nothing
				s.relied.past[s.relied.version], s.relied.version = true, version
			}
			if s.relied.past[version] {
				b.t.Errorf("entry %d: a push of %s relies on watches that were others by then", i, change.Repo)
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
