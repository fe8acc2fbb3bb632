package changes_test

import (
	"encoding/json"
	"testing"

	"lockstep/events"
	"lockstep/internal/changes"
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
