package server_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestGitOfManyRefs lists and fetches refs of a repository of which 5,000 refs, or 50,000, were synced at some time.
func TestGitOfManyRefs(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	refs := testenv.Soak(5_000, 50_000)
	l := newLibrary(t)
	l.watch("docs", "acme/widgets", "refs/heads/*")
	l.sync("acme/widgets", "", "docs")
	key := events.DefaultNamespace.Repo(testenv.Must(events.ParseRepoPath("acme/widgets"))(t))
	for i := 0; i < refs; {
		pipe := l.client.Pipeline()
		for range 1000 {
			ref := fmt.Sprintf("refs/heads/some-longer-branch-name-for-a-feature-%06d", i)
			commit := fmt.Sprintf("%040x", i+1)
			pipe.HSet(t.Context(), key, "head:"+ref, commit, "given:"+ref+":docs", commit, "byhand:"+ref, "1", "chain:"+ref, "- "+commit,
				"asked:"+ref+":robot", "1795481333135-0 "+ref+" "+commit+" https://git.example.com/acme/widgets.git")
			i++
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	url := l.gitURL(l.docs, "acme/widgets")
	for range 2 {
		listed := testenv.Must(gitserver.Git(t.Context(), "/", "", "ls-remote", url, "refs/heads/*"))(t)
		if n := strings.Count(listed, "\n") + 1; n != refs+1 {
			t.Errorf("%d refs are listed, want %d", n, refs+1)
		}
	}
	testenv.Must(gitserver.Git(t.Context(), "/", "", "clone", "-q", "--depth=1", "--branch=main", "--single-branch", url, filepath.Join(t.TempDir(), "clone")))(t)
}
