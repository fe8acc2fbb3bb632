package handlers_test

import (
	"testing"

	"lockstep/events"
)

func TestErrorsThatAreNobodysTroubleHaveNoScope(t *testing.T) {
	w := newWorld(t).begin()
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	for name, tc := range map[string]struct {
		change      events.Change
		disposition events.Disposition
	}{
		"the remote is behind its webhook":    {events.Change{URL: url, After: absent}, events.Contention},
		"the app does not watch it":           {events.Change{URL: url, App: "docs", Watched: true}, events.Permanent},
		"the app does not watch what is gone": {events.Change{URL: url + "x", App: "docs", Watched: true}, events.Permanent},
	} {
		_, err := w.outcome("1-0", tc.change)
		if err == nil || events.ScopeOf(err) != events.ScopeNone || events.DispositionOf(err) != tc.disposition {
			t.Errorf("%s: scope %q, %v: %v", name, events.ScopeOf(err), events.DispositionOf(err), err)
		}
	}
}

func TestRedisIsNotTheChangesTrouble(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	job := w.job("1-0", events.Change{URL: w.git.URL("acme/widgets")})
	w.server.Stop()
	_, err := w.try(job)
	if events.ScopeOf(err) != events.ScopeUs || events.DispositionOf(err) != events.Contention {
		t.Errorf("scope %q, %v: %v", events.ScopeOf(err), events.DispositionOf(err), err)
	}
}
