package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// TestPurgeReachesFollowers purges a commit at the origin. Its copies go, too: at once, and where the follower was away.
func TestPurgeReachesFollowers(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const repo = "acme/widgets"
	o := startOrigin(t, repo)
	near, away := o.follow(), o.follow()
	clean := proctest.Must(o.git.Git(t.Context(), repo, "", "rev-parse", "main"))(t)
	leak := o.push(repo, "secret")
	for _, f := range []*node{near, away} {
		f.await(repo, leak)
		if !f.has(repo, leak) {
			t.Fatal("the copy has no object of a published commit")
		}
	}
	away.process.Kill()
	proctest.Must(o.git.Commit(t.Context(), repo, gitserver.Main, gitserver.Edit{Parent: clean, Write: map[string]string{"a": "no secret"}}))(t)
	rewritten := proctest.Must(o.git.Git(t.Context(), repo, "", "rev-parse", "main"))(t)
	o.request(events.Change{URL: o.git.URL(repo), After: rewritten})
	near.await(repo, rewritten)
	if stdout, stderr, code := proctest.RunLockstep(t, nil, "repos", "purge", repo, "--commit", leak, "--redis", o.redis.URL(), "--root", o.root); code != term.ExitDone {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	away.start()
	for name, f := range map[string]*node{"connected": near, "away": away} {
		f.await(repo, rewritten)
		proctest.Eventually(t, func() bool { return !f.has(repo, leak) }, "%s: the purged commit is gone", name)
	}
}

// has reports whether any store of a repository has a commit.
func (f *node) has(repo, commit string) bool {
	stores, _ := filepath.Glob(filepath.Join(f.root, ".lockstep/repos", repo, "stores/*"))
	for _, store := range stores {
		if exec.Command("git", "--git-dir", store, "cat-file", "-e", commit).Run() == nil {
			return true
		}
	}
	return false
}
