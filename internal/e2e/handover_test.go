package e2e

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// margin is the tolerance for what a busy machine does late. Soak tests have the machine to themselves, so it is short there.
func margin() time.Duration { return testenv.Soak(30*time.Second, time.Second) }

// arrival is a request that reached the Git server.
type arrival struct {
	repo string
	at   time.Time
}

// startStuckGit starts a Git server that never answers its first request, and reports all requests.
func startStuckGit(t *testing.T) (*gitserver.Server, <-chan arrival) {
	t.Helper()
	requests := make(chan arrival, 100)
	var stuck atomic.Bool
	git := proctest.StartGit(t, gitserver.WithBefore(func(ctx context.Context, repo, _ string) {
		requests <- arrival{repo, time.Now()}
		if stuck.CompareAndSwap(false, true) {
			<-ctx.Done()
		}
	}))
	for _, repo := range []string{"acme/widgets", "acme/gadgets"} {
		proctest.Must(git.Create(t.Context(), repo, map[string]string{"a": "1"}))(t)
	}
	return git, requests
}

// next waits for the next request.
func next(t *testing.T, requests <-chan arrival) arrival {
	t.Helper()
	select {
	case r := <-requests:
		return r
	case <-time.After(time.Minute):
		t.Fatal("no request for a minute")
		return arrival{}
	}
}

func TestChangeOfKilledWorkerRunsElsewhereWithinLease(t *testing.T) {
	t.Parallel()
	lease := 2 * time.Second
	args := []string{"serve", "--lease", lease.String()}
	if testenv.Soaking() {
		lease, args = 10*time.Second, args[:1] // the default
	}
	git, requests := startStuckGit(t)
	server := redistest.Start(t)
	args = append(args, "--redis", server.URL(), "--root", t.TempDir())
	first := proctest.Start(t, args...)
	change := proctest.Must(events.NewChange(events.Change{URL: git.URL("acme/widgets")}))(t)
	proctest.Must(0, app.PublishChange(t.Context(), server.Client(), events.DefaultNamespace, change))(t)
	next(t, requests)
	proctest.Start(t, args...).AwaitLog("worker takes changes")

	killed := time.Now()
	first.Kill()
	took := next(t, requests).at.Sub(killed)
	t.Logf("lease %v: retried elsewhere after %v", lease, took.Round(time.Millisecond))
	if took > lease+margin() {
		t.Errorf("retried elsewhere %v after the kill, want at most the lease of %v and %v", took, lease, margin())
	}
	if r := proctest.AwaitResults(t, server.Client(), 1)[0]; r.Type != events.ResultSynced {
		t.Errorf("result %+v, want synced", r)
	}
}

func TestChangesOfStoppedWorkerRunElsewhereAtOnce(t *testing.T) {
	t.Parallel()
	const grace = 500 * time.Millisecond
	git, requests := startStuckGit(t)
	server := redistest.Start(t)
	client := server.Client()
	args := []string{"serve", "--redis", server.URL(), "--root", t.TempDir(), "--grace", grace.String(), "--slots", "1",
		"--lease", "5m", "--lock-wait", "5m"} // waiting for the lease to expire would take too long
	first := proctest.Start(t, args...)
	for _, repo := range []string{"acme/widgets", "acme/gadgets"} {
		change := proctest.Must(events.NewChange(events.Change{URL: git.URL(repo)}))(t)
		proctest.Must(0, app.PublishChange(t.Context(), client, events.DefaultNamespace, change))(t)
	}
	working := next(t, requests).repo // the change to the other repository waits for the only slot
	proctest.Eventually(t, func() bool {
		pending, err := client.XPending(t.Context(), events.DefaultNamespace.Changes(), events.WorkersGroup).Result()
		return err == nil && pending.Count == 2
	}, "the first worker has both changes")
	proctest.Start(t, args...).AwaitLog("worker takes changes")

	stopped := time.Now()
	_ = first.Cmd.Process.Signal(syscall.SIGTERM)
	took := map[string]time.Duration{}
	for len(took) < 2 {
		if r := next(t, requests); took[r.repo] == 0 {
			took[r.repo] = r.at.Sub(stopped)
		}
	}
	for repo, d := range took {
		within := time.Duration(0)
		if repo == working {
			within = grace
		}
		t.Logf("%s, grace period %v: retried elsewhere after %v", repo, within, d.Round(time.Millisecond))
		if d > within+margin() {
			t.Errorf("%s: retried elsewhere %v after SIGTERM, want at most %v and %v", repo, d, within, margin())
		}
	}
	if code := first.AwaitExit(time.Minute); code != term.ExitDone {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	for _, r := range proctest.AwaitResults(t, client, 2) {
		if r.Type != events.ResultSynced || r.Attempts != 1 {
			t.Errorf("result %+v, want a successful first attempt", r)
		}
	}
	proctest.AssertIdle(t, client)
}
