package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// TestDeathIsNoFailedAttempt kills a worker twice whose changes wait for the answer of a host, or for their turn to ask it. One more death
// would be that of a change that runs alone.
func TestDeathIsNoFailedAttempt(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const repos = 20
	h := startRemote(t, 2, startSameEverywhere(t))
	h.does(hangs)
	s := startService(t, nil, "--lease", "1s")
	var entries []string
	for n := range repos {
		entries = append(entries, s.publish(h.url(fmt.Sprint("acme/r-", n))))
	}
	for range 2 {
		asked := len(h.seen())
		s.awaitTaken(repos)
		proctest.Eventually(t, func() bool { return len(h.seen()) > asked }, "a request hangs")
		s.process.Kill()
		s.start()
	}
	h.does(nil)
	s.awaitAllSynced(entries)
	if n := s.charged(); n > 0 {
		t.Errorf("%d of %d changes have more than one attempt", n, repos)
	}
}

// TestChangeThatRunsAtThreeDeathsIsPoison kills a worker each time that it asks for one repository. Other changes are handled beside that,
// but not at the third time.
func TestChangeThatRunsAtThreeDeathsIsPoison(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	_, good := startGood(t)
	h := startRemote(t, 2, startSameEverywhere(t))
	h.does(ofRepo("acme/deadly", hangs))
	s := startService(t, nil, "--lease", "1s")
	entry := s.publish(h.url("acme/deadly"), "app", "docs")
	shown := func() string { _, answer := s.do("GET", "/api/v1/repos/acme/deadly", ""); return answer }
	var beside string
	for death := 1; death <= 3; death++ {
		proctest.Eventually(t, func() bool { return len(h.seen()) >= death }, "request %d hangs", death)
		beside = s.publish(good)
		if death < 3 {
			s.awaitSynced(beside)
		} else if !s.noneWithin(3*time.Second, beside) {
			t.Error("another change was handled beside one that may kill the worker")
		}
		s.process.Kill()
		s.start()
	}
	if r := s.await(entry); r.Type != events.ResultFailed || r.Class != events.ClassInternal || r.Attempts != 1 {
		t.Errorf("%s %s after %d attempts, want a failed first attempt", r.Type, r.Class, r.Attempts)
	}
	s.awaitSynced(beside)
	if answer := shown(); !strings.Contains(answer, "the process died") {
		t.Errorf("the repository is not shown as failing: %s", answer)
	}
	if n := len(h.seen()); n != 3 {
		t.Errorf("the remote was asked %d times, want 3", n)
	}
	h.does(nil)
	out, stderr, code := proctest.RunLockstep(t, nil, "dead", "retry", "--reason", "poison", "--redis", s.redis.URL())
	if code != 0 {
		t.Fatalf("dead retry: %d\n%s%s", code, out, stderr)
	}
	synced := func(r events.Result) bool { return r.Type == events.ResultSynced && r.App == "docs" }
	proctest.Eventually(t, func() bool { return slices.ContainsFunc(s.results(), synced) }, "the retried change is synced")
	if answer := shown(); strings.Contains(answer, "the process died") {
		t.Errorf("the repository still fails: %s", answer)
	}
}

// TestCleanStopIsNoDeath stops a worker three times with SIGTERM, and a grace period that is too short, while a change runs.
func TestCleanStopIsNoDeath(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := startRemote(t, 2, startSameEverywhere(t))
	h.does(hangs)
	s := startService(t, nil, "--lease", "1s", "--grace", "100ms")
	entry := s.publish(h.url("acme/slow"))
	for stop := 1; stop <= 3; stop++ {
		proctest.Eventually(t, func() bool { return len(h.seen()) >= stop }, "request %d hangs", stop)
		s.process.Terminate()
		s.start()
	}
	h.does(nil)
	s.awaitSynced(entry)
}
