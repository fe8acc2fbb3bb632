package feed

import (
	"testing"
	"time"

	"lockstep/internal/access"
)

// TestInboxes puts results into inboxes, of which those that miss some, or whose results have waited for long, are read from Redis instead.
func TestInboxes(t *testing.T) {
	t.Parallel()
	result := func(ms uint64, age time.Duration, apps ...string) *entry {
		return &entry{at: position{entry: entryID{ms: ms}}, frame: make([]byte, 100), audience: access.Audience(apps), decided: time.Now().Add(-age)}
	}
	many := make([]*entry, maxWaiting+1)
	for i := range many {
		many[i] = result(uint64(i+1), 0, "docs")
	}
	large := result(1, 0, "docs")
	large.frame = make([]byte, maxWaitingBytes+1)
	for name, tc := range map[string]struct {
		app     string
		entries []*entry
		want    int // -1 if the inbox is emptied
	}{
		"of the app":                         {"docs", []*entry{result(1, 0, "docs"), result(2, 0, "scan"), result(3, 0, "docs", "scan")}, 2},
		"none of the app":                    {"docs", []*entry{result(1, 0, "scan")}, 0},
		"of the operator":                    {"", []*entry{result(1, 0, "docs"), result(2, 0)}, 2},
		"old ones of the app":                {"docs", []*entry{result(1, time.Hour, "docs")}, -1},
		"old ones of the operator":           {"", []*entry{result(1, time.Hour)}, 1},
		"one that cannot be decoded":         {"", []*entry{{at: position{entry: entryID{ms: 1}}}}, 0},
		"as many as it holds":                {"docs", many[:maxWaiting], maxWaiting},
		"more than it holds":                 {"docs", many, -1},
		"one that is larger than it is":      {"docs", []*entry{large}, 1},
		"more bytes than it holds":           {"docs", []*entry{large, result(2, 0, "docs")}, -1},
		"none, since the stream was emptied": {"docs", nil, -1},
	} {
		s, woken := &source{}, false
		in := &inbox{from: s, app: tc.app, wake: func() { woken = true }}
		if _, _, ok := in.take(time.Minute); ok {
			t.Errorf("%s: an inbox that has not joined gets results", name)
		}
		in.join()
		if s.inboxes.put(tc.entries); tc.entries == nil {
			s.inboxes.restart(position{entry: entryID{ms: 7}})
		}
		entries, to, ok := in.take(time.Minute)
		if ok != (tc.want >= 0) || ok && (len(entries) != tc.want || to != tc.entries[len(tc.entries)-1].at) || woken != (tc.want != 0) {
			t.Errorf("%s: %d results up to %v, %v, woken %v", name, len(entries), to, ok, woken)
		}
		if again, _, stays := in.take(time.Minute); len(again) > 0 || stays != ok {
			t.Errorf("%s: then %d results, %v", name, len(again), stays)
		}
		in.leave()
		if len(s.inboxes.byApp) > 0 {
			t.Errorf("%s: %v is left", name, s.inboxes.byApp)
		}
	}
}
