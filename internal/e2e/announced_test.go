package e2e

import (
	"strings"
	"testing"
	"time"

	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

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
