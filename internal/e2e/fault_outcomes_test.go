package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/proctest"
)

// deadLetters returns the fields of all dead letters.
func (s *service) deadLetters() (all []map[string]any) {
	s.Helper()
	for _, entry := range proctest.Must(s.client.XRange(context.Background(), "lockstep:{0}:dead", "-", "+").Result())(s.T) {
		all = append(all, entry.Values)
	}
	return all
}

// TestEachAnswerOfARemoteHasItsOutcome has remotes answer in various ways. Each change has one result; dead letters are left by those whose
// attempts are used up, by one that is too old, and by one that is malformed.
func TestEachAnswerOfARemoteHasItsOutcome(t *testing.T) {
	t.Parallel()
	const attempts = 3
	h := startRemote(t, 2, startSameEverywhere(t))
	var hiccups atomic.Int32
	h.does(func(request remoteRequest, w http.ResponseWriter, r *http.Request) bool {
		status := map[string]int{
			"acme/down": http.StatusBadGateway, "acme/old": http.StatusBadGateway, "acme/gone": http.StatusNotFound,
			"acme/private": http.StatusUnauthorized, "acme/forbidden": http.StatusForbidden,
		}[request.repo]
		if request.repo == "acme/hiccup" && hiccups.Add(1) == 1 {
			status = http.StatusInternalServerError
		}
		return status != 0 && answers(status, 0)(request, w, r)
	})
	s := startService(t, nil, "--lease", "2s", "--max-attempts", fmt.Sprint(attempts))
	weekAgo := strconv.FormatInt(time.Now().Add(-8*24*time.Hour).UnixMilli(), 10) + "-0"
	old := proctest.Must(s.client.XAdd(t.Context(), &redis.XAddArgs{Stream: "lockstep:{0}:changes", ID: weekAgo, Values: []string{"url", h.url("acme/old")}}).Result())(t)
	malformed := s.publish(h.url("acme/widgets"), "repo", "acme/../../etc")
	for name, want := range map[string]struct {
		entry    string
		result   events.ResultType
		class    events.Class
		attempts int
	}{
		"well":                   {s.publish(h.url("acme/well")), events.ResultSynced, "", 1},
		"one failure":            {s.publish(h.url("acme/hiccup")), events.ResultSynced, "", 2},
		"down":                   {s.publish(h.url("acme/down")), events.ResultFailed, events.ClassServer, attempts},
		"down, and a week old":   {old, events.ResultFailed, events.ClassServer, 1},
		"no such repository":     {s.publish(h.url("acme/gone")), events.ResultFailed, events.ClassNotFound, 1},
		"wants a credential":     {s.publish(h.url("acme/private")), events.ResultFailed, events.ClassAuth, 1},
		"refuses access":         {s.publish(h.url("acme/forbidden")), events.ResultFailed, events.ClassAuth, 1},
		"a branch that is not":   {s.publish(h.url("acme/well"), "ref", "nowhere"), events.ResultFailed, events.ClassNoRef, 1},
		"an unknown credential":  {s.publish(h.url("acme/other"), "credential", "nobody"), events.ResultFailed, events.ClassConfig, 1},
		"a poll without a watch": {s.publish("", "repo", "acme/unwatched", "type", "due"), events.ResultPolled, "", 1},
	} {
		r := s.await(want.entry)
		if r.Type != want.result || r.Class != want.class || r.Attempts != want.attempts {
			t.Errorf("%s: %s %s after %d attempts (%s), want %s %s after %d", name, r.Type, r.Class, r.Attempts, r.Error, want.result, want.class, want.attempts)
		}
	}
	proctest.Eventually(t, func() bool { return len(s.deadLetters()) >= 3 }, "dead letters")
	var reasons []string
	for _, letter := range s.deadLetters() {
		reasons = append(reasons, fmt.Sprint(letter["reason"]))
	}
	slices.Sort(reasons)
	if !slices.Equal(reasons, []string{"attempts used up", "malformed", "too old"}) {
		t.Errorf("dead letters %q", reasons)
	}
	if r, ok := s.resultOf(malformed); ok {
		t.Errorf("a malformed change has a result: %+v", r)
	}
}
