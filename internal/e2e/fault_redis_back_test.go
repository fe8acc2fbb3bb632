package e2e

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// TestAppsEndAtTheHeadAfterRedisWentBack has Redis return with older data again and again under load, and deletes the group of the changes.
func TestAppsEndAtTheHeadAfterRedisWentBack(t *testing.T) {
	testenv.Long(t)
	s := newStormOn(t, redistest.StartReal(t))
	w := s.watched()
	forgotten := 0
	for round := range testenv.Soak(3, 20) {
		earlier := s.confirmed() // those that Redis has forgotten have no result
		ahead, lost := 10+s.rand.IntN(20), 60+s.rand.IntN(120)
		w.push(func() {
			w.f.awaitMore(t, ahead)
			s.mu.Lock()
			before := s.confirmed()[len(earlier):] // at the latest when the snapshot begins
			s.mu.Unlock()
			proctest.Must(0, s.client.Save(t.Context()).Err())(t)
			w.f.awaitMore(t, lost)
			s.server.Stop()
			proctest.Eventually(t, func() bool { return !isReady(w.address) }, "the worker is not ready without Redis")
			s.server.Restart()
			proctest.Eventually(t, func() bool { return isReady(w.address) }, "the worker is ready again")
			proctest.Eventually(t, func() bool { return s.client.Ping(t.Context()).Err() == nil }, "the test's connections are back")
			forgotten += s.forgotten(w.f)
			w.f.await(t, before)
			if round%3 == 1 {
				group := proctest.Must(s.client.XInfoGroups(t.Context(), events.DefaultNamespace.Changes()).Result())(t)[0].Name
				proctest.Must(s.client.XGroupDestroy(t.Context(), events.DefaultNamespace.Changes(), group).Result())(t)
			}
			w.f.awaitMore(t, 10)
		})
		w.awaitHeads()
	}
	if forgotten == 0 {
		t.Error("the snapshots have all results, so the test proves nothing")
	}
	t.Logf("%d pushes (%d forced), %d results, %d lost after the apps received them", s.pushes, s.forced, len(w.f.received()), forgotten)
}

// TestAppsEndAtTheHeadAfterAFailoverToALaggingReplica promotes a replica that misses the last results.
func TestAppsEndAtTheHeadAfterAFailoverToALaggingReplica(t *testing.T) {
	testenv.Long(t)
	sentinel := redistest.StartSentinel(t)
	s := newStormOn(t, sentinel.Master)
	s.url, s.client = sentinel.URL(), redistest.Open(t, sentinel.URL())
	w := s.watched()
	forgotten := 0
	w.push(func() {
		w.f.awaitMore(t, 40)
		sentinel.Replicate()
		sentinel.CutOff()
		w.f.awaitMore(t, 40)
		sentinel.Master.Stop()
		proctest.Eventually(t, sentinel.Promoted, "the replica is promoted")
		proctest.Eventually(t, func() bool { return isReady(w.address) }, "the worker is ready with the new master")
		proctest.Eventually(t, func() bool { return s.client.Ping(t.Context()).Err() == nil }, "the test's connections are back")
		forgotten = s.forgotten(w.f)
		w.f.awaitMore(t, 10)
	})
	w.awaitHeads()
	if forgotten == 0 {
		t.Error("the replica has all results, so the test proves nothing")
	}
	t.Logf("%d pushes (%d forced), %d results, %d lost after the apps received them", s.pushes, s.forced, len(w.f.received()), forgotten)
}

// watchedStorm is a storm whose refs are watched and polled, with two workers and a receiver of webhooks.
type watchedStorm struct {
	*storm
	f       *follower
	hooks   *publishers
	address string // of a worker
}

func (s *storm) watched() watchedStorm {
	s.t.Helper()
	var watches []watch.Watch
	for _, repo := range s.repos {
		for _, app := range stormApps {
			for _, ref := range []string{"", "next"} {
				watches = append(watches, proctest.Must(watch.New(watch.Watch{
					App: app, URL: s.git.URL(repo), Ref: proctest.Must(watch.ParseSelector(ref))(s.t), Poll: watch.Interval(2 * time.Second),
				}))(s.t))
			}
		}
	}
	proctest.Must(watch.NewRegistry(s.client, events.DefaultNamespace).Put(s.t.Context(), watches...))(s.t)
	w := watchedStorm{s, s.follow(), s.receive(), proctest.FreeAddress(s.t)}
	for _, listen := range []string{w.address, ""} {
		proctest.Start(s.t, append([]string{"serve", "--roles", "worker,scheduler", "--listen", listen}, s.serve()...)...)
	}
	return w
}

// push pushes until do returns.
func (w watchedStorm) push(do func()) {
	w.t.Helper()
	pushing, stop := context.WithCancel(w.t.Context())
	defer stop()
	var g errgroup.Group
	g.Go(func() error { return w.run(pushing) })
	g.Go(func() error {
		for n := 0; pushing.Err() == nil; pause(pushing, 50*time.Millisecond) {
			if backlog, err := w.backlog(pushing); err != nil || backlog < 100 {
				w.hooks.byHook(pushing, uuid.NewString(), w.repos[n%len(w.repos)])
				n++
			}
		}
		return nil
	})
	do()
	stop()
	proctest.Must(0, g.Wait())(w.t)
}

// awaitHeads waits until each app has the files of the head of each ref. It skips results whose IDs it knows, applies only what a result lists, and does not
// look whether that begins at what it has.
func (w watchedStorm) awaitHeads() {
	w.t.Helper()
	behind := ""
	w.t.Cleanup(func() {
		if behind != "" {
			w.t.Log(behind, w.unfinished())
		}
	})
	proctest.Eventually(w.t, func() bool { behind = w.behindApps(); return behind == "" }, "every app has the head of every ref")
}

// behindApps describes an app that has not the head of a ref, or returns "".
func (w watchedStorm) behindApps() string {
	has, known, all := map[chain]map[string]string{}, map[string]events.Result{}, map[chain][]events.Result{}
	for _, r := range w.f.received() {
		if r.Type != events.ResultSynced {
			continue
		}
		c := chain{r.Repo.String(), r.Ref.String(), r.App}
		all[c] = append(all[c], r)
		if first, ok := known[r.ID]; ok {
			if first.After != r.After || first.Tree != r.Tree {
				w.t.Errorf("%s is the ID of %s and of %s", r.ID, first.Tree, r.Tree)
			}
			continue
		}
		known[r.ID] = r
		if has[c] == nil || r.Full || r.Before == "" {
			has[c] = map[string]string{}
		}
		for _, f := range r.Files {
			if has[c][f.Path] = w.trees[r.After][f.Path]; f.Status == events.FileDeleted {
				delete(has[c], f.Path)
			}
		}
	}
	for _, repo := range w.repos {
		for _, ref := range stormRefs {
			for _, app := range stormApps {
				c, head := chain{repo, ref, app}, w.git.Head(repo, ref)
				if !maps.Equal(has[c], w.trees[head]) {
					text := fmt.Sprintf("%s has not %.12s of %s of %s, but %v; the commit has %v; its last results:",
						app, head, ref, repo, has[c], w.trees[head])
					for _, r := range all[c][max(0, len(all[c])-20):] {
						text += fmt.Sprintf("\n%s from %.12s to %.12s, full %v: %v", r.ID, r.Before, r.After, r.Full, r.Files)
					}
					return text
				}
			}
		}
	}
	return ""
}
