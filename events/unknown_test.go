package events_test

import (
	"strings"
	"testing"

	"lockstep/events"
)

func TestUnknownTypesAreMalformed(t *testing.T) {
	const data = `"data":{"repo":"acme/widgets","url":"https://example.com/acme/widgets.git","ref":""}`
	event := func(kind string) string {
		return `{"specversion":"1.0","id":"1","source":"/x","type":"` + kind + `",` + data + `}`
	}
	for name, document := range map[string]string{
		"an unknown version":          event("lockstep.change.pushed.v2"),
		"an unknown kind":             event("lockstep.change.archived.v1"),
		"as plain fields":             `{"type":"lockstep.change.archived.v1","repo":"acme/widgets"}`,
		"no version":                  event("lockstep.change.pushed"),
		"a result among changes":      event("lockstep.result.synced.v1"),
		"a plain word":                `{"type":"archived","repo":"acme/widgets"}`,
		"a type that is no text":      `{"specversion":"1.0","id":"1","type":7}`,
		"a type as long as you like":  event("lockstep.change." + strings.Repeat("a", 1000) + ".v1"),
		"a type that hides something": event("lockstep.change.a\\nb.v1"),
	} {
		if _, err := events.ParseChange([]byte(document)); events.DispositionOf(err) != events.Malformed || events.ClassOf(err) != events.ClassConfig {
			t.Errorf("%s: %v: %s, %s", name, err, events.DispositionOf(err), events.ClassOf(err))
		}
	}
	for _, kind := range []string{"lockstep.result.synced.v2", "lockstep.result.pinned.v1", "lockstep.change.pushed.v1", "synced"} {
		if _, err := events.ParseResult([]byte(event(kind))); events.DispositionOf(err) != events.Malformed || events.ClassOf(err) != events.ClassConfig {
			t.Errorf("result %s: %v: %s, %s", kind, err, events.DispositionOf(err), events.ClassOf(err))
		}
	}
}
