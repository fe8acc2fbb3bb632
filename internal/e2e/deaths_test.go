package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

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
