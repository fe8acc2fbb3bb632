package e2e

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// TestRedelivery delivers webhooks again while their change is not settled, after it has failed, and after it has settled well. The credential
// never worked before, so that it fails at once.
func TestRedelivery(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	git := proctest.StartGit(t)
	head := proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"a": "1"}))(t)
	h := startRemote(t, 2, inFrontOf(t, git))
	url := h.url("acme/widgets")
	h.does(answers(http.StatusForbidden, 0))
	s := startService(t, hookEnv(), "--lease", "1s")
	s.watch(map[string]any{"app": "docs", "url": url, "poll": "never"})
	proctest.Eventually(t, func() bool { return len(s.results()) > 0 }, "the poll for the new watch fails")
	redeliver := func(duplicate bool) {
		t.Helper()
		if answer := s.deliver("d1", url, head); (answer["duplicate"] == true) != duplicate {
			t.Fatalf("delivery: %v, want duplicate %v", answer, duplicate)
		}
	}
	const key = "lockstep:{0}:deliveries:ci/d1/0"
	ended := func(n int, want events.ResultType) {
		t.Helper()
		var all []events.Result
		proctest.Eventually(t, func() bool {
			all = slices.DeleteFunc(s.results(), func(r events.Result) bool { return r.App != "docs" })
			return len(all) >= n
		}, "result %d of the app", n)
		if all[n-1].Type != want || len(all) > n {
			t.Fatalf("%d results, the last %s, want %d and %s", len(all), all[n-1].Type, n, want)
		}
	}
	redeliver(false)
	ended(1, events.ResultFailed)
	h.does(hangs) // the token is repaired, and the remote is slow
	asked := len(h.seen())
	redeliver(false)
	proctest.Eventually(t, func() bool { return len(h.seen()) > asked }, "a request hangs")
	redeliver(true)
	s.process.Kill() // the change is not settled
	h.does(nil)
	s.start()
	redeliver(true)
	ended(2, events.ResultSynced)
	redeliver(true)

	// A minute later, the tree is current: one request for the refs, and no fetch.
	if left := proctest.Must(s.client.TTL(context.Background(), key).Result())(t); left <= 0 || left > time.Minute {
		t.Errorf("the delivery is remembered for %v, want at most a minute", left)
	}
	s.client.Del(context.Background(), key)
	asked = len(h.seen())
	redeliver(false)
	ended(3, events.ResultSynced)
	for _, r := range h.seen()[asked:] {
		if r.pack {
			t.Errorf("the remote was asked for objects: %+v", r)
		}
	}
}
