package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// TestClockOfRedisIsSet sets the clock of Redis forward and back during a change. Every change has one result, within seconds. When the clock
// is set forward the worker of the change is killed as well.
func TestClockOfRedisIsSet(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	for name, tc := range map[string]struct {
		from, to time.Duration
		kill     bool
	}{
		"forward by a day":  {0, 24 * time.Hour, true},
		"back by a day":     {0, -24 * time.Hour, false},
		"forward by 500 ms": {0, 500 * time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if failure := clockIsSet(t, tc.from, tc.to, tc.kill); failure != "" {
				t.Error(failure)
			}
		})
	}
}

// clockIsSet returns that a change has no result within a minute after the clock was set from one offset to another, or "". Anything else that
// goes wrong fails the test. If kill is true, the worker that is working on a change is killed.
func clockIsSet(t *testing.T, from, to time.Duration, kill bool) (failure string) {
	t.Helper()
	ctx := t.Context()
	var hangs atomic.Bool // requests to acme/slow
	reached, resume := make(chan struct{}, 100), make(chan struct{})
	git := proctest.StartGit(t, gitserver.WithBefore(func(ctx context.Context, repo, _ string) {
		if repo == "acme/slow" && hangs.Load() {
			reached <- struct{}{}
			select {
			case <-ctx.Done():
			case <-resume:
			}
		}
	}))
	server, root, address := redistest.StartFaulty(t, 0, "--appendonly", "yes", "--appendfsync", "always"), t.TempDir(), proctest.FreeAddress(t)
	client := server.Client()
	server.SetClock(from)
	repos := []string{"acme/slow", "acme/widgets", "acme/gadgets"}
	for _, repo := range repos {
		proctest.Must(git.Create(ctx, repo, map[string]string{"version": "0"}))(t)
	}
	args := []string{"serve", "--redis", server.URL(), "--root", root, "--lease", "2s"}
	doomed := proctest.Start(t, args...)
	var sent int
	push := func(repo string) {
		t.Helper()
		sent++
		commit := proctest.Must(git.Commit(ctx, repo, gitserver.Main, gitserver.Edit{Write: map[string]string{"version": fmt.Sprint(sent)}}))(t)
		proctest.Must(0, addChange(ctx, client, map[string]string{"id": fmt.Sprintf("push-%d", sent), "url": git.URL(repo), "after": commit}))(t)
	}
	for _, repo := range repos {
		push(repo)
	}
	proctest.AwaitResults(t, client, sent)
	hangs.Store(true)
	push("acme/slow")
	<-reached
	proctest.Start(t, append(args, "--listen", address)...)
	proctest.Eventually(t, func() bool { return isReady(address) }, "the second worker is ready")
	server.SetClock(to)
	began := time.Now()
	for range 5 {
		push("acme/widgets")
		push("acme/gadgets")
	}
	hangs.Store(false)
	if kill {
		doomed.Kill()
	}
	close(resume) // for the second worker, too, which may have begun already
	unready, counts := false, map[string]int{}
	count := func() int { // of pushes: what a ref shows while a push waits for its commit may be synced by a change of its own
		clear(counts)
		for _, r := range resultsIn(t, client) {
			for _, id := range r.Deliveries {
				if strings.HasPrefix(id, "push-") {
					counts[id]++
				}
			}
			if r.Type != events.ResultSynced {
				t.Errorf("%s %s: %s", r.Type, r.Repo, r.Error)
			}
		}
		return len(counts)
	}
	for time.Since(began) < 60*time.Second && count() < sent {
		unready = unready || !isReady(address)
		time.Sleep(100 * time.Millisecond)
	}
	if unready {
		t.Error("the worker is not ready although Redis and the worker work")
	}
	if n := count(); n < sent {
		return fmt.Sprintf("%d of %d changes have a result %v after the clock was set from %v to %v", n, sent, time.Since(began).Round(time.Second), from, to)
	}
	t.Logf("all changes have a result %v after the clock was set", time.Since(began).Round(100*time.Millisecond))
	for id, n := range counts {
		if n != 1 {
			t.Errorf("change %s has %d results", id, n)
		}
	}
	for _, repo := range repos {
		assertCheckout(t, filepath.Join(root, repo), git.Head(repo, "refs/heads/main"))
	}
	return ""
}

// TestHalfMovedSlot begins to move the slot of all keys to another node of a cluster, under load, and leaves it half moved for a while, as a
// resharding that was interrupted. No change is lost or done twice, nobody has to restart anything, and a worker is not ready meanwhile,
// since it cannot settle anything.
func TestHalfMovedSlot(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	ctx := t.Context()
	git, cluster, root, address := proctest.StartGit(t), redistest.StartCluster(t), t.TempDir(), proctest.FreeAddress(t)
	client := redistest.Open(t, cluster.URL())
	var repos []string
	for i := range 6 {
		repos = append(repos, fmt.Sprintf("acme/repo-%d", i))
		proctest.Must(git.Create(ctx, repos[i], map[string]string{"version": "0"}))(t)
	}
	for _, listen := range []string{address, ""} {
		proctest.Start(t, "serve", "--redis", cluster.URL(), "--root", root, "--lease", "2s", "--log-level", "warn", "--listen", listen)
	}
	var confirmed []string
	sent := 0
	push := func() {
		t.Helper()
		repo := repos[sent%len(repos)]
		sent++
		id := fmt.Sprintf("push-%d", sent)
		commit := proctest.Must(git.Commit(ctx, repo, gitserver.Main, gitserver.Edit{Write: map[string]string{"version": fmt.Sprint(sent)}}))(t)
		if addChange(ctx, client, map[string]string{"id": id, "url": git.URL(repo), "after": commit}) == nil {
			confirmed = append(confirmed, id)
		}
	}
	for range 12 {
		push()
	}
	proctest.AwaitResults(t, client, 12)
	for range 12 {
		push()
	}
	finish := cluster.HalfMove(events.DefaultNamespace.Results())
	for range 12 {
		push()
	}
	proctest.Eventually(t, func() bool { return !isReady(address) }, "the worker is not ready while it cannot settle")
	finish()
	for range 6 {
		push()
	}
	received := proctest.AwaitResults(t, client, len(confirmed))
	proctest.Eventually(t, func() bool { return isSettled(client) }, "all changes are settled")
	proctest.Eventually(t, func() bool { return isReady(address) }, "the worker is ready again")
	counts := map[string]int{}
	for _, r := range received {
		for _, id := range r.Deliveries {
			counts[id]++
		}
	}
	for _, id := range confirmed {
		if counts[id] != 1 {
			t.Errorf("change %s has %d results", id, counts[id])
		}
	}
	for _, repo := range repos {
		assertCheckout(t, filepath.Join(root, repo), git.Head(repo, "refs/heads/main"))
	}
	proctest.AssertIdle(t, client)
}
