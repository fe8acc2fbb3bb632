package dashboard

import (
	"strings"
	"testing"

	"lockstep/events"
)

// TestRefsLeftOutAreShown shows on the page of a repository what its watches leave out, and why.
func TestRefsLeftOutAreShown(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	err = d.client.HSet(t.Context(), events.DefaultNamespace.Repo(repo), "repo", "acme/widgets", "leftout", `[
		{"app":"ci","ref":"refs/heads/*","reason":"max-refs","max_refs":100,"count":34,"refs":["refs/heads/<b>"]},
		{"app":"docs","ref":"","reason":"name","count":1,"refs":["refs/heads/long"]}]`).Err()
	if err != nil {
		t.Fatal(err)
	}
	text := d.page("/dashboard/repo?repo=acme/widgets", nil)
	for _, want := range []string{"Refs left out", "beyond max-refs 100", ">34<", "refs/heads/&lt;b&gt;", "name too long or not UTF-8"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
}
