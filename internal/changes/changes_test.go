package changes_test

import (
	"encoding/json"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/changes"
	"lockstep/internal/testenv"
)

func TestMessageUUIDIsTheEventID(t *testing.T) {
	t.Parallel()
	m, err := changes.Message(events.Change{Type: events.ChangeRemoved})
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ ID string }
	if err := json.Unmarshal(m.Payload, &doc); err != nil || m.UUID == "" || doc.ID != m.UUID {
		t.Errorf("UUID %q, id %q, %v; want one new id", m.UUID, doc.ID, err)
	}
	m, err = changes.ResultMessage(events.Result{ID: "r1", Type: events.ResultRemoved})
	if err != nil || m.UUID != "r1" {
		t.Errorf("UUID %q, %v; want the result's", m.UUID, err)
	}
}

func TestResultsOfARepository(t *testing.T) {
	repo := testenv.Must(events.ParseRepoPath("acme/widgets"))(t)
	for name, tc := range map[string]struct {
		repo, to string
		want     bool
	}{
		"its own":               {repo: "acme/widgets", want: true},
		"in another case":       {repo: "Acme/Widgets", want: true},
		"its move to that name": {repo: "acme/old", to: "acme/widgets", want: true},
		"of another repository": {repo: "acme/widgets2"},
		"that only mentions it": {repo: "acme/other"},
	} {
		r := resultOf(t, "c", "1-0")
		r.Repo, r.Error = testenv.Must(events.ParseRepoPath(tc.repo))(t), `no "acme/widgets"`
		if tc.to != "" {
			r.Type, r.To = events.ResultMoved, testenv.Must(events.ParseRepoPath(tc.to))(t)
		}
		document := testenv.Must(json.Marshal(r))(t)
		entry := redis.XMessage{ID: "1-0", Values: map[string]any{"payload": string(document)}}
		if got, ok := changes.ResultOf(entry, repo); ok != tc.want || ok && got.ID != r.ID {
			t.Errorf("%s: %v, %+v", name, ok, got)
		}
	}
}
