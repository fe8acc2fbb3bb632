package status

import (
	"strings"
	"testing"

	"lockstep/internal/operate"
	"lockstep/internal/state"
	"lockstep/internal/term"
)

// TestRefsLeftOutHaveRows has a watch that leaves out refs for two reasons.
func TestRefsLeftOutHaveRows(t *testing.T) {
	s := Service{}
	s.Repos.LeftOut = []operate.RepoSummary{{Summary: state.Summary{Repo: "acme/widgets", LeftOut: []state.LeftOut{
		{App: "ci", Ref: "refs/heads/*", Reason: state.BeyondMaxRefs, MaxRefs: 100, Count: 50},
		{App: "docs", Reason: state.InvalidName, Count: 1},
	}}}}
	var out strings.Builder
	s.leftOutRows(&out)
	want := "REFS LEFT OUT HOW MANY acme/widgets 50 of refs/heads/* for ci, beyond max-refs 100; 1 of the default branch for docs, with names that are too long or not UTF-8"
	if got := strings.Join(strings.Fields(term.Align(out.String())), " "); got != want {
		t.Errorf("got %q", got)
	}
}
