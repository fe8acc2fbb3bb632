package handlers_test

import (
	"testing"

	"lockstep/events"
	"lockstep/internal/ext/signatures"
	"lockstep/internal/watch"
)

// TestChecksSeeTheDepthOfTheirWatch has a change of another app, with less history, come before the first one of a watch with rules.
func TestChecksSeeTheDepthOfTheirWatch(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.mustHandle("1-0", events.Change{URL: url, App: "docs"})
	w.watchAs(watch.Watch{App: "docs", URL: url}, "")
	w.watchAs(watch.Watch{App: "deploy", URL: url, Depth: events.DepthFull, Options: watch.With(signatures.Options{NoRewind: true})}, "")
	second := w.push(map[string]string{"a": "2"})
	if r := w.mustHandle("2-0", events.Change{URL: url, App: "docs"}); r.After != second {
		t.Errorf("got %+v, want %s", r, second)
	}
}
