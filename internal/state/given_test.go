package state

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// TestEarlierCommits delivers commits to an app: those before the last one are remembered, each once, and at most 4. They end with what was delivered.
func TestEarlierCommits(t *testing.T) {
	t.Parallel()
	main := testenv.Must(events.ParseRef("main"))(t)
	repo := Repo{fields: map[string]string{}}
	deliver := func(app string, commits ...string) {
		for _, commit := range commits {
			result := events.Result{App: app, Ref: main, After: commit}
			fields, _ := repo.SyncedFields(result, "")
			maps.Copy(repo.fields, fields)
		}
	}
	deliver("docs", "c1", "c2", "c2", "c3", "c1")
	deliver("scan", "c9")
	if got := repo.Earlier("docs", main); !slices.Equal(got, []string{"c3", "c2"}) {
		t.Errorf("docs: %v", got)
	}
	if got := repo.Earlier("scan", main); len(got) != 0 {
		t.Errorf("scan: %v", got)
	}
	for i := range 20 {
		deliver("docs", fmt.Sprint("d", i))
	}
	if got := repo.Earlier("docs", main); len(got) != 4 || got[0] != "d18" {
		t.Errorf("docs: %v", got)
	}
	for name, fields := range map[string][]string{"ref": repo.FieldsOf(main), "clone": repo.CloneFields(), "app": repo.GivenFields("docs", main)} {
		if !slices.Contains(fields, earlierField("docs", main)) {
			t.Errorf("%s: %v lacks the earlier commits", name, fields)
		}
	}
}
