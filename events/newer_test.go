package events_test

import (
	"strings"
	"testing"

	"lockstep/events"
)

func TestNewerTypesAreLeftToANewerVersion(t *testing.T) {
	const data = `"data":{"repo":"acme/widgets","url":"https://example.com/acme/widgets.git","ref":""}`
	event := func(kind, data string) string {
		return `{"specversion":"1.0","id":"1","source":"/x","type":"` + kind + `",` + data + `}`
	}
	for name, tc := range map[string]struct {
		document string
		newer    bool
	}{
		"a newer version":             {event("lockstep.change.pushed.v2", data), true},
		"with other data":             {event("lockstep.change.pushed.v2", `"data":{"repo":{"path":"acme/widgets"},"depth":7}`), true},
		"an unknown kind":             {event("lockstep.change.archived.v1", data), true},
		"as plain fields":             {`{"type":"lockstep.change.archived.v1","repo":"acme/widgets"}`, true},
		"a known one, unsound":        {event("lockstep.change.pushed.v1", `"data":{"repo":"acme/.."}`), false},
		"no version":                  {event("lockstep.change.pushed", data), false},
		"somebody else's":             {event("com.example.change.pushed.v2", data), false},
		"a result among changes":      {event("lockstep.result.synced.v2", data), false},
		"a plain word":                {`{"type":"archived","repo":"acme/widgets"}`, false},
		"a type that is no text":      {`{"specversion":"1.0","id":"1","type":7}`, false},
		"a type as long as you like":  {event("lockstep.change."+strings.Repeat("a", 1000)+".v1", data), false},
		"a type that hides something": {event("lockstep.change.a\\nb.v1", data), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := events.ParseChange([]byte(tc.document))
			newer := events.DispositionOf(err) == events.Contention && events.ClassOf(err) == events.ClassNewer
			if newer != tc.newer || !newer && events.DispositionOf(err) != events.Malformed {
				t.Errorf("%v: %s, %s", err, events.DispositionOf(err), events.ClassOf(err))
			}
		})
	}
	for kind, want := range map[string]events.Class{
		"lockstep.result.synced.v2": events.ClassNewer, "lockstep.result.pinned.v1": events.ClassNewer,
		"lockstep.change.pushed.v1": events.ClassMalformed, "synced": events.ClassMalformed,
	} {
		if _, err := events.ParseResult([]byte(event(kind, `"data":{"repo":7}`))); events.ClassOf(err) != want {
			t.Errorf("result %s: %v: %s, want %s", kind, err, events.ClassOf(err), want)
		}
	}
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	change, err := events.ParseChange([]byte(`{"specversion":"1.0","id":"1","source":"/x","type":"lockstep.change.pushed.v1","mood":"good",
		"data":{"repo":"acme/widgets","url":"https://example.com/acme/widgets.git","priority":{"n":7}}}`))
	if err != nil || change.Repo.String() != "acme/widgets" {
		t.Errorf("%+v, %v", change, err)
	}
	result, err := events.ParseResult([]byte(`{"specversion":"1.0","id":"1","source":"/x","type":"lockstep.result.synced.v1","mood":"good",
		"data":{"repo":"acme/widgets","ref":"refs/heads/main","took_ms":1,"files":[{"path":"a","status":"added","lines":7}],"cost":[1]}}`))
	if err != nil || len(result.Files) != 1 {
		t.Errorf("%+v, %v", result, err)
	}
}
