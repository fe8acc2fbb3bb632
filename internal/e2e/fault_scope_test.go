package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// noneWithin reports whether a change has no result for that long.
func (s *service) noneWithin(d time.Duration, entry string) bool {
	s.Helper()
	for deadline := time.Now().Add(d); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if _, ok := s.resultOf(entry); ok {
			return false
		}
	}
	return true
}

// TestCraftedTreesTakeLittleMemory syncs six repositories at once of a few kilobytes whose trees have ten billion files: they nest ten levels deep, each
// with ten times the next one. A further kind is a line.
func TestCraftedTreesTakeLittleMemory(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	t.Parallel()
	const most = 768 << 20                       // the garbage of one beside the next; the manifests allow 900 MiB
	for name, prefix := range map[string]string{ // of the names at each level
		"many files": "", "paths of 2 KB": strings.Repeat("x", 200),
	} {
		t.Run(name, func(t *testing.T) {
			git := proctest.StartGit(t)
			var urls []string
			for n := range 6 {
				repo := fmt.Sprint("acme/crafted-", n)
				craftTree(t, git, repo, prefix)
				urls = append(urls, git.URL(repo))
			}
			s := startService(t, nil, "--slots", "6")
			for _, url := range urls {
				s.publish(url)
			}
			proctest.Eventually(t, func() bool { return len(s.results()) == len(urls) }, "results of all repositories")
			if _, peak := memoryOf(t, s.process.Cmd.Process.Pid); peak > most {
				t.Errorf("%d MiB of memory in use before all are refused, want at most %d", peak>>20, most>>20)
			}
			for _, r := range s.results() {
				if r.Type != events.ResultFailed {
					t.Errorf("%s %s, want it refused", r.Type, r.Repo)
				}
			}
		})
	}
}

// craftTree creates a repository whose tree has ten billion files. prefix starts the names at each level.
func craftTree(t *testing.T, git *gitserver.Server, repo, prefix string) {
	t.Helper()
	proctest.Must(0, git.CreateEmpty(t.Context(), repo))(t)
	object := proctest.Must(git.Git(t.Context(), repo, repo, "hash-object", "-w", "--stdin"))(t)
	for level, mode := 0, "100644 blob"; level < 10; level, mode = level+1, "040000 tree" {
		var entries strings.Builder
		for i := range 10 {
			fmt.Fprintf(&entries, "%s %s\t%s%d\n", mode, object, prefix, i)
		}
		object = proctest.Must(git.Git(t.Context(), repo, entries.String(), "mktree"))(t)
	}
	commit := proctest.Must(git.Git(t.Context(), repo, "", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit-tree", "-m", "x", object))(t)
	proctest.Must(0, git.SetRef(t.Context(), repo, "refs/heads/main", commit))(t)
}
