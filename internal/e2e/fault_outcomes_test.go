package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
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

// TestWaitForARepositoryCostsNoAttempt has a change of a repository take longer than others wait for it. They come again, without a counted
// attempt, and share what the remote answers.
func TestWaitForARepositoryCostsNoAttempt(t *testing.T) {
	t.Parallel()
	const lockWait = time.Second
	h := startRemote(t, 2, startSameEverywhere(t))
	release := make(chan struct{})
	h.does(func(remoteRequest, http.ResponseWriter, *http.Request) bool { <-release; return false })
	env := slices.Concat(credentialFor("ONE", "one", h.base), credentialFor("TWO", "two", h.base))
	s := startService(t, env, "--slots", "2", "--lease", "1s", "--lock-wait", lockWait.String())
	entries := []string{s.publish(h.url("acme/widgets"), "app", "a", "credential", "one")}
	proctest.Eventually(t, func() bool { return len(h.seen()) > 0 }, "the first change is at work")
	for range 20 {
		entries = append(entries, s.publish(h.url("acme/widgets"), "app", "a", "credential", "one"), s.publish(h.url("acme/widgets"), "app", "b", "credential", "two"))
	}
	time.Sleep(5 * lockWait / 2) // so that they give up waiting, and come again
	close(release)
	s.awaitAllSynced(entries)
	if n := s.charged(); n > 0 {
		t.Errorf("%d changes have more than one attempt", n)
	}
	seen := map[string]int{}
	for _, r := range s.results() {
		for _, id := range r.Deliveries {
			if seen[id]++; seen[id] > 1 {
				t.Errorf("a second result of %s", id)
			}
		}
	}
	tokens := map[string]int{}
	for _, r := range h.seen() {
		tokens[r.token]++
	}
	if most := 3 * 4; tokens["one"] == 0 || tokens["two"] == 0 || tokens["one"]+tokens["two"] > most {
		t.Errorf("requests by token %v, want some with each and at most %d", tokens, most)
	}
}

// TestPollUsesACredentialThatIsNotLimited limits one of two credentials of a repository for an hour, while its remote moves.
func TestPollUsesACredentialThatIsNotLimited(t *testing.T) {
	t.Parallel()
	git, good := startGood(t)
	h := startRemote(t, 2, inFrontOf(t, git))
	env := slices.Concat(credentialFor("ONE", "one", h.base), credentialFor("TWO", "two", h.base))
	s := startService(t, env)
	url := h.url("acme/good")
	for app, credential := range map[string]string{"a": "one", "b": "two"} {
		s.watch(map[string]any{"app": app, "url": url, "credential": credential, "poll": "never"})
		s.awaitSynced(s.publish(url, "app", app, "credential", credential))
	}
	h.does(func(request remoteRequest, w http.ResponseWriter, r *http.Request) bool {
		return request.token == "one" && answers(http.StatusTooManyRequests, time.Hour)(request, w, r)
	})
	s.publish(url, "app", "a", "credential", "one")
	proctest.Eventually(t, func() bool { requests := h.seen(); return requests[len(requests)-1].token == "one" }, "the credential is refused")
	commit := proctest.Must(git.Commit(t.Context(), "acme/good", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	s.publish("", "repo", "acme/good", "type", "due")
	proctest.Eventually(t, func() bool {
		return slices.ContainsFunc(s.results(), func(r events.Result) bool { return r.App == "b" && r.After == commit })
	}, "a poll of %s with the other credential", good)
}

// TestSpentQuotaIsWaitedFor has a host answer well, and say that nothing is left of the quota until some seconds later.
func TestSpentQuotaIsWaitedFor(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const repos, most = 60, 20
	h := startRemote(t, 2, startSameEverywhere(t))
	reset := time.Now().Add(6 * time.Second).Truncate(time.Second)
	h.does(func(_ remoteRequest, w http.ResponseWriter, r *http.Request) bool {
		if time.Now().Before(reset) {
			w.Header().Set("X-RateLimit-Remaining", "0")
			w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
		}
		h.next.ServeHTTP(w, r)
		return true
	})
	s := startService(t, credentialFor("ONE", "one", h.base))
	first := s.publish(h.url("acme/first"), "credential", "one")
	proctest.Eventually(t, func() bool { return len(h.seen()) > 0 }, "the first request")
	entries := []string{first}
	for n := range repos {
		entries = append(entries, s.publish(h.url(fmt.Sprint("acme/r-", n)), "credential", "one"))
	}
	s.awaitAllSynced(entries)
	early := 0
	for _, r := range h.seen() {
		if r.at.Before(reset) {
			early++
		}
	}
	if early > most {
		t.Errorf("%d requests before the reset, want at most %d", early, most)
	}
	t.Logf("%d requests before the reset", early)
}

// TestRevokedTokenOfAnAppIsReplaced has a remote refuse the first token of a GitHub App, which has not expired.
func TestRevokedTokenOfAnAppIsReplaced(t *testing.T) {
	t.Parallel()
	var issued atomic.Int32
	s := startTokenAPI(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"token":"token-%d","expires_at":%q}`, issued.Add(1), time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	})
	s.awaitSynced(s.publishAs("one"))
	s.git.AcceptTokens("acme/good", "token-2")
	commit := proctest.Must(s.git.Commit(t.Context(), "acme/good", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	if r := s.awaitSynced(s.publishAs("one")); r.After != commit || issued.Load() != 2 {
		t.Errorf("synced to %s with %d tokens, want %s with two", r.After, issued.Load(), commit)
	}
}

// TestForcedRemovalOfARepositoryThatFails removes a repository whose remote has failed, so that other changes wait for at least half a minute.
func TestForcedRemovalOfARepositoryThatFails(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := startRemote(t, 2, startSameEverywhere(t))
	s := startService(t, nil, "--lease", "10m", "--lock-wait", "10m")
	s.awaitSynced(s.publish(h.url("acme/widgets")))
	before := len(h.seen())
	h.does(answers(http.StatusInternalServerError, 0))
	failed := s.publish(h.url("acme/widgets"), "app", "app-1")
	proctest.Eventually(t, func() bool { return len(h.seen()) > before }, "the remote has failed")
	if r := s.await(s.publish(h.url("acme/widgets"), "type", "removed", "force", "true")); r.Type != events.ResultRemoved {
		t.Errorf("%s %s, want it removed", r.Type, r.Error)
	}
	if r, ok := s.resultOf(failed); ok {
		t.Errorf("it waited for the change that failed: %s", r.Type)
	}
	if _, err := os.Lstat(filepath.Join(s.root, "acme/widgets")); !os.IsNotExist(err) {
		t.Errorf("its name: %v, want none", err)
	}
}

// TestChangeThatKillsItsProcessIsGivenUp kills the process each time that it works on a change, until that is a dead letter. Others are
// handled then.
func TestChangeThatKillsItsProcessIsGivenUp(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := startRemote(t, 2, startSameEverywhere(t))
	h.does(ofRepo("acme/deadly", hangs))
	s := startService(t, nil, "--lease", "1s", "--max-attempts", "1")
	deadly := s.publish(h.url("acme/deadly"))
	asked := 0
	for deaths := 0; len(s.deadLetters()) == 0; deaths++ {
		if deaths == 20 {
			t.Fatalf("after %d deaths it is still tried", deaths)
		}
		proctest.Eventually(t, func() bool { return len(h.seen()) > asked || len(s.deadLetters()) > 0 }, "the change is at work")
		asked = len(h.seen())
		if len(s.deadLetters()) == 0 {
			s.process.Kill()
			s.start()
		}
	}
	if r := s.await(deadly); r.Type != events.ResultFailed {
		t.Errorf("%s, want it failed", r.Type)
	}
	s.awaitSynced(s.publish(h.url("acme/other")))
	if letters := s.deadLetters(); len(letters) != 1 || !strings.Contains(fmt.Sprint(letters[0]), "acme/deadly") {
		t.Errorf("dead letters %v", letters)
	}
}
