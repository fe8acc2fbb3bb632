package dashboard

import (
	"strings"
	"testing"

	"lockstep/events"
)

// TestRefusedCommitIsShown shows verdicts to everybody, and reasons, which name apps and settings, to admins.
func TestRefusedCommitIsShown(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.client.HSet(t.Context(), events.DefaultNamespace.Repo(repo), "repo", "acme/widgets", "refused", "refs/heads/main",
		"check:refs/heads/main", `{"ref":"refs/heads/main","commit":"`+strings.Repeat("1", 40)+`","at":"2026-11-23T01:02:03Z","class":"unverified","reason":"app deploy requires <b>",
			"verdicts":[{"keys":"team","apps":["deploy"],"verified":false,"reason":"not signed"}]}`,
		"check:refs/heads/v1", `{"ref":"refs/heads/v1","commit":"`+strings.Repeat("2", 40)+`","at":"2026-11-23T01:02:03Z",
			"verdicts":[{"keys":"team","apps":["deploy"],"verified":true,"by":"Alice <script>","key":"SHA256:abc","commits":3}]}`).Err(); err != nil {
		t.Fatal(err)
	}
	for who, text := range map[string]string{"": d.page("/dashboard/repo?repo=acme/widgets", nil), "docs": d.page("/dashboard/repo?repo=acme/widgets", bearer)} {
		for _, want := range []string{"refused: unverified", `<span class="badge ok">verified</span>`, "Alice &lt;script&gt;", "SHA256:abc", "3 commits"} {
			if !strings.Contains(text, want) {
				t.Errorf("as %q: no %q", who, want)
			}
		}
		if shown := strings.Contains(text, "app deploy requires &lt;b&gt;"); shown != (who != "") {
			t.Errorf("as %q: the reason is shown: %v", who, shown)
		}
	}
	if list := d.page("/dashboard/repos", nil); !strings.Contains(list, "commit refused") {
		t.Error("the list does not show it")
	}
}

// TestMissingSubmodulesAreShown shows paths to everybody, and errors, which name hosts and credentials, to admins.
func TestMissingSubmodulesAreShown(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.client.HSet(t.Context(), events.DefaultNamespace.Repo(repo), "repo", "acme/widgets", "missing", "refs/heads/main",
		"missing:refs/heads/main", `{"ref":"refs/heads/main","commit":"`+strings.Repeat("1", 40)+`","at":"2026-11-23T01:02:03Z","count":12,
			"submodules":[{"path":"libs/<b>","class":"auth","error":"git.example.com refused it (credential \"libs\")"}]}`).Err(); err != nil {
		t.Fatal(err)
	}
	for who, text := range map[string]string{"": d.page("/dashboard/repo?repo=acme/widgets", nil), "docs": d.page("/dashboard/repo?repo=acme/widgets", bearer)} {
		for _, want := range []string{"Missing submodules", "libs/&lt;b&gt;", "and 11 more"} {
			if !strings.Contains(text, want) {
				t.Errorf("as %q: no %q", who, want)
			}
		}
		if shown := strings.Contains(text, "git.example.com refused it"); shown != (who != "") {
			t.Errorf("as %q: the error is shown: %v", who, shown)
		}
	}
	if list := d.page("/dashboard/repos", nil); !strings.Contains(list, "submodules missing") {
		t.Error("the list does not show it")
	}
}
