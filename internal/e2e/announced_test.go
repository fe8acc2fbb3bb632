package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
)

const zeroCommit = "0000000000000000000000000000000000000000"

// TestReplicaBehindItsWebhookIsAwaited shows an announced commit after more than ten seconds.
func TestReplicaBehindItsWebhookIsAwaited(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	git := proctest.StartGit(t)
	old := proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"a": "1"}))(t)
	s := startService(t, nil, "--lease", "1s")
	s.awaitSynced(s.publish(git.URL("acme/widgets")))
	commit := proctest.Must(git.Commit(t.Context(), "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	proctest.Must(0, git.SetRef(t.Context(), "acme/widgets", "refs/heads/main", old))(t)
	entry := s.publish(git.URL("acme/widgets"), "ref", "main", "before", old, "after", commit)
	proctest.Eventually(t, func() bool {
		_, answer := s.do("GET", "/api/v1/repos/acme/widgets", "")
		return strings.Contains(answer, `"awaited"`) && strings.Contains(answer, commit)
	}, "the state says that the commit is not visible yet")
	if !s.noneWithin(8*time.Second, entry) {
		t.Fatalf("the change ends without its commit")
	}
	s.process.Kill() // between two looks
	s.start()
	if !s.noneWithin(4*time.Second, entry) {
		t.Fatalf("the change ends without its commit, after the worker was killed")
	}
	proctest.Must(0, git.SetRef(t.Context(), "acme/widgets", "refs/heads/main", commit))(t)
	if r := s.awaitSynced(entry); r.After != commit {
		t.Errorf("the change that announces %.12s ends as synced at %.12s", commit, r.After)
	}
	out, stderr, code := proctest.RunLockstep(t, nil, "repos", "show", "acme/widgets", "--redis", s.redis.URL(), "--root", s.root)
	if code != 0 || strings.Contains(out, "not visible") {
		t.Errorf("repos show: %d %s\n%s", code, stderr, out)
	}
}

// TestWebhooksOfGoneBranchesDelayNobody announces 120 branches that the remote does not have, and then a push to main.
func TestWebhooksOfGoneBranchesDelayNobody(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const gone = 120
	git := proctest.StartGit(t)
	head := proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"a": "1"}))(t)
	url := git.URL("acme/widgets")
	s := startService(t, hookEnv())
	s.watch(map[string]any{"app": "docs", "url": url, "ref": "refs/heads/*", "poll": "never"})
	push := func(id string) time.Duration {
		t.Helper()
		commit := proctest.Must(git.Commit(t.Context(), "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": id}}))(t)
		began := time.Now()
		s.deliverPush(id, url, "main", head, commit)
		head = commit
		proctest.Eventually(t, func() bool {
			return slices.ContainsFunc(s.results(), func(r events.Result) bool { return r.After == commit })
		}, "the push is synced")
		return time.Since(began)
	}
	push("first")
	alone := push("alone")
	for n := range gone {
		s.deliverPush(fmt.Sprint("gone-", n), url, fmt.Sprint("refs/heads/gone-", n), zeroCommit, head)
	}
	listings := git.Stats("acme/widgets").InfoRefs
	beside := push("beside")
	t.Logf("a push alone took %v, beside %d webhooks of branches that are gone %v", alone, gone, beside)
	if beside > max(time.Second, 5*alone) {
		t.Errorf("the push took %v beside %d webhooks, alone %v", beside, gone, alone)
	}
	// They are looked for together.
	key := events.DefaultNamespace.Repo(proctest.Must(events.ParseRepoPath("acme/widgets"))(t))
	awaited := func() (a state.Awaited) {
		_ = json.Unmarshal([]byte(s.client.HGet(t.Context(), key, "awaited").Val()), &a)
		return a
	}
	proctest.Eventually(t, func() bool { a := awaited(); return a.Looks >= 4 && len(a.Commits) == gone }, "four looks for all")
	if n := git.Stats("acme/widgets").InfoRefs - listings; n > 60 {
		t.Errorf("the remote was asked %d times", n)
	}
}

// TestAnnouncementsThatNeverComeTrueSettle adds them as if almost ten minutes ago.
func TestAnnouncementsThatNeverComeTrueSettle(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	git := proctest.StartGit(t)
	head := proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"a": "1"}))(t)
	url := git.URL("acme/widgets")
	s := startService(t, nil)
	absent := strings.Repeat("a", 40)
	var entries []string
	for n, ref := range []string{"gone-1", "gone-2", "main", ""} {
		entries = append(entries, proctest.Must(s.client.XAdd(t.Context(), &redis.XAddArgs{
			Stream: "lockstep:{0}:changes", ID: fmt.Sprintf("%d-%d", time.Now().Add(-state.AwaitedFor+5*time.Second).UnixMilli(), n+1),
			Values: []string{"url", url, "app", "docs", "ref", ref, "after", absent},
		}).Result())(t))
	}
	s.watch(map[string]any{"app": "docs", "url": url, "poll": "never"})
	for n, entry := range entries {
		r := s.await(entry)
		if n < 2 && r.Type != events.ResultRemoved || n >= 2 && (r.Type != events.ResultFailed || !strings.Contains(r.Error, "was not visible within 10m")) {
			t.Errorf("%d: %+v", n, r)
		}
	}
	proctest.Eventually(t, func() bool { // also if the worker was too late to look before
		return slices.ContainsFunc(s.results(), func(r events.Result) bool { return r.Type == events.ResultSynced && r.App == "docs" && r.After == head })
	}, "what the remote shows is synced")
	key := events.DefaultNamespace.Repo(proctest.Must(events.ParseRepoPath("acme/widgets"))(t))
	if fields := s.client.HGetAll(t.Context(), key).Val(); fields["awaited"] != "" || strings.Contains(fmt.Sprint(fields), "gone-") {
		t.Errorf("the state has %v", fields)
	}
}
