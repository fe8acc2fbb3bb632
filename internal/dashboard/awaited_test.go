package dashboard

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lockstep/events"
)

// TestAwaitedCommitsAreShown shows on the page of a repository which announced commits are not visible yet.
func TestAwaitedCommitsAreShown(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	commit := strings.Repeat("ab", 20)
	awaited := fmt.Sprintf(`{"next":%[1]q,"commits":[{"entry":"1-0","app":"docs","ref":"refs/heads/<b>","commit":%[2]q,"since":%[1]q},
		{"entry":"2-0","app":"settled","ref":"","commit":%[2]q,"since":"2026-01-02T03:04:05Z"}]}`, time.Now().Format(time.RFC3339), commit)
	if err := d.client.HSet(t.Context(), events.DefaultNamespace.Repo(repo), "repo", "acme/widgets", "awaited", awaited).Err(); err != nil {
		t.Fatal(err)
	}
	text := d.page("/dashboard/repo?repo=acme/widgets", nil)
	for _, want := range []string{"not visible yet", "&lt;b&gt;", commit[:12]} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(text, "settled") {
		t.Error("an announcement that has expired is shown")
	}
}
