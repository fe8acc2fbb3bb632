package intake_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/forge"
	"lockstep/internal/intake"
)

// TestUnwatchedRepositoriesAreCounted takes deliveries of repositories with and without a watch, and records their outcomes.
// A ref that nobody watches, of a watched repository, is none of them, and neither is a refused request.
func TestUnwatchedRepositoriesAreCounted(t *testing.T) {
	r := newRig(t, "", 0)
	dev := push(t, "d1", "acme/widgets")
	dev.Events[0].Ref, dev.Events[0].Default = ref(t, "dev"), ref(t, "main")
	elsewhere := push(t, "d2", "acme/none")
	elsewhere.Events[0].Repo, elsewhere.Events[0].URLs = events.RepoPath{}, []string{"https://example.com/" + strings.Repeat("x", 400)}
	j := intake.NewJournal(r.client, events.DefaultNamespace)
	for _, d := range []forge.Delivery{
		push(t, "d3", "acme/widgets"), push(t, "d4", "acme/docs"), push(t, "d5", "acme/docs"), push(t, "d6", "acme/app"), dev, elsewhere,
		{Source: "hub", ID: "d7", Ignored: "no branch or tag"},
	} {
		out, err := r.take(d)
		if err != nil {
			t.Fatal(err)
		}
		j.Record(intake.Received{Source: "hub", Verified: true, Outcome: out.Result, Repo: intake.Repo(d), Why: out.Why, Unwatched: out.Unwatched})
	}
	j.Record(intake.Received{Source: "hub", Outcome: intake.Ignored, Repo: "acme/evil", Why: "unauthorized"})
	j.Close()
	for since, want := range map[time.Duration]int{-time.Hour: 4, time.Hour: 0} {
		n, repos, err := intake.Unwatched(t.Context(), r.client, events.DefaultNamespace, time.Now().Add(since))
		if err != nil || n != want {
			t.Fatalf("since %v: %d, %v", since, n, err)
		}
		if want > 0 && (len(repos) != 3 || !slices.Equal(repos[:2], []string{"acme/docs", "acme/app"})) {
			t.Errorf("got %q", repos)
		}
	}
}
