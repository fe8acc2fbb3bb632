package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// TestVanishedChangesAreMadeUpFor removes changes of watched repositories, which are never polled otherwise, before workers have read them,
// while they wait, and with their group.
func TestVanishedChangesAreMadeUpFor(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	ctx := context.Background()
	const stream, repos = "lockstep:{0}:changes", 5
	git := proctest.StartGit(t)
	h := startRemote(t, 2, inFrontOf(t, git))
	s := startServiceOn(t, redistest.StartReal(t), nil, "--lease", "1s") // the embedded Redis does not count what a stream has lost
	name := func(n int) string { return fmt.Sprint("acme/r-", n) }
	push := func(n int) (commit string) {
		t.Helper()
		return proctest.Must(git.Commit(ctx, name(n), gitserver.Main, gitserver.Edit{Write: map[string]string{"a": t.Name() + fmt.Sprint(len(s.results()))}}))(t)
	}
	given := func(commit string) bool {
		for _, r := range s.results() {
			if r.Type == events.ResultSynced && r.After == commit && r.App == "docs" {
				return true
			}
		}
		return false
	}
	settled := func() bool {
		pending, err := s.client.XPending(ctx, stream, "workers").Result()
		return err == nil && pending.Count == 0
	}
	for n := range repos {
		head := proctest.Must(git.Create(ctx, name(n), map[string]string{"a": "0"}))(t)
		s.watch(map[string]any{"app": "docs", "url": h.url(name(n)), "poll": "never"})
		proctest.Eventually(t, func() bool { return given(head) }, "the first tree of %s", name(n))
	}
	proctest.Eventually(t, settled, "all changes are settled")

	for what, lose := range map[string]func(){
		"unread": func() {
			pipe := s.client.TxPipeline()
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: []string{"url", h.url(name(1)), "app", "docs"}})
			pipe.XTrimMaxLen(ctx, stream, 0)
			_ = proctest.Must(pipe.Exec(ctx))(t)
		},
		"with its group": func() {
			pipe := s.client.TxPipeline()
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: []string{"url", h.url(name(1)), "app", "docs"}})
			pipe.XGroupDestroy(ctx, stream, "workers")
			pipe.XTrimMaxLen(ctx, stream, 0)
			_ = proctest.Must(pipe.Exec(ctx))(t)
		},
		"of a killed worker": func() {
			h.does(hangs)
			asked := len(h.seen())
			s.publish(h.url(name(1)), "app", "docs")
			proctest.Eventually(t, func() bool { return len(h.seen()) > asked }, "a request hangs")
			s.process.Kill()
			_ = proctest.Must(s.client.XTrimMaxLen(ctx, stream, 0).Result())(t)
			h.does(nil)
			s.start()
		},
	} {
		commits := []string{push(1), push(3)} // the latter's change could be any of those that are not known
		lose()
		for _, commit := range commits {
			proctest.Eventually(t, func() bool { return given(commit) }, "%s: %.12s is given to the app", what, commit)
		}
		proctest.Eventually(t, settled, "%s: all changes are settled", what)
	}
}
