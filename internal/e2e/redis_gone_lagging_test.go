package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/follow"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// TestFollowerKeepsItsCopiesAfterAnImport exports while a consumer group lags behind all results, and imports into an empty Redis that a
// follower asks before anything was polled.
func TestFollowerKeepsItsCopiesAfterAnImport(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	o := startOrigin(t, "acme/widgets", "acme/gadgets")
	proctest.Must(0, o.client.XGroupCreate(t.Context(), events.DefaultNamespace.Results(), "lagging", "0").Err())(t)
	f := o.follow()
	f.process.AwaitLog("caught up with the reader")
	for _, repo := range []string{"acme/widgets", "acme/gadgets"} {
		f.await(repo, o.git.Head(repo, "refs/heads/main"))
	}
	file := filepath.Join(t.TempDir(), "lockstep.export")
	if stdout, stderr, code := proctest.RunLockstep(t, nil, "export", file, "--redis", o.redis.URL()); code != 0 {
		t.Fatalf("export: exit code %d\n%s%s", code, stdout, stderr)
	}
	o.worker.Terminate()
	o.redis.Stop()
	o.redis.Restart()
	f.process.AwaitLog("the reader refuses the token")
	if stdout, stderr, code := proctest.RunLockstep(t, nil, "import", file, "--redis", o.redis.URL()); code != 0 {
		t.Fatalf("import: exit code %d\n%s%s", code, stdout, stderr)
	}
	source := proctest.Must(follow.NewReader(o.url, f.tokenFile))(t)
	proctest.Eventually(t, func() bool {
		_, err := source.Repos(t.Context())
		return err == nil
	}, "the reader answers")
	listed := proctest.Must(source.Repos(t.Context()))(t)
	if len(listed) != 2 {
		t.Errorf("before a poll the token reads %v, want both repositories", listed)
	}
	for _, one := range listed {
		if len(one.Refs) != 1 || one.Refs[0].Commit != o.git.Head(one.Repo.String(), "refs/heads/main") {
			t.Errorf("the token reads %+v", one)
		}
	}
	results := events.DefaultNamespace.Results()
	o.startWorker()
	f.await("acme/widgets", o.push("acme/widgets", "after"))
	proctest.Eventually(t, func() bool {
		first := map[string]events.Result{}
		for _, entry := range proctest.Must(o.client.XRange(t.Context(), results, "-", "+").Result())(t) {
			if r := proctest.DecodeResult(t, entry); r.App == "search" && r.Type == events.ResultSynced && first[r.Repo.String()].ID == "" {
				first[r.Repo.String()] = r
			}
		}
		return len(first) == 2 && first["acme/widgets"].Before == "" && first["acme/gadgets"].Before == "" && len(first["acme/gadgets"].Files) == 2
	}, "the results that the group has not acknowledged are repeated")
	f.assertSame("acme/widgets")
	if text := f.process.Log.String(); strings.Contains(text, "outcome=removed") {
		t.Errorf("the follower has removed copies:\n%s", text)
	}
}
