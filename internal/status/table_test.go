package status

import (
	"strings"
	"testing"
	"time"

	"lockstep/internal/feed"
	"lockstep/internal/operate"
	"lockstep/internal/term"
)

// TestFollowerRows tells one that is revoked, one that is away and one of another version, within 80 columns.
func TestFollowerRows(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	cursor := "MSBBQkNERUZHSElKS0xNTk9QIDE3OTUyMjM1MTEyMDEtNyAxMg"
	s := Service{now: now, Followers: []feed.Follower{
		{Name: "node-1", App: "search", Seen: now.Add(-3 * time.Hour), LagMS: 9e6, State: feed.FollowerAway, Entry: "1795223511201-7", Report: feed.Report{Cursor: cursor, Repos: 50, Behind: 3, Version: "v1.2.3"}},
		{Name: "node-2", App: "search", Seen: now, LagMS: -1, State: feed.FollowerFirst, Report: feed.Report{Version: "v1.1.0"}},
		{Name: "node-3", App: "search", Seen: now.Add(-time.Hour), State: feed.FollowerRevoked},
		{Name: "node-4", Seen: now.Add(-9 * time.Second), State: feed.FollowerOK, Entry: "1795223511201-7", Report: feed.Report{Cursor: cursor, Repos: 7}},
	}}
	var out strings.Builder
	s.followerRows(&out)
	var got []string
	for line := range strings.Lines(term.Align(out.String())) {
		if len(line) > 81 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"", "FOLLOWER APP STATE BEHIND LAG CURSOR REPORTED VERSION",
		"node-1 search away 3/50 2h30m 1795223511201-7 3h0m ago v1.2.3",
		"node-2 search first copy 0/0 - - 0s ago v1.1.0",
		"node-3 search revoked 0/0 0s - 1h0m ago -",
		"node-4 - ok 0/7 0s 1795223511201-7 9s ago -",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-1: "0s", 0: "0s", 1500 * time.Microsecond: "2ms", 1234 * time.Millisecond: "1.2s", 75 * time.Second: "1m15s",
		3*time.Hour + 4*time.Minute + 5*time.Second: "3h4m", 50 * time.Hour: "2d2h",
	} {
		if got := duration(d); got != want {
			t.Errorf("duration(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestLinesHaveNoControlCharacters(t *testing.T) {
	if got := OneLine("synced", "\x1b[2J\x1b]0;owned\a\u009b31mred\r\b\x7f"); strings.ContainsAny(got, "\x1b\a\r\b\x7f\u009b") {
		t.Errorf("%q", got)
	}
}

func TestUnknownLagSaysWhy(t *testing.T) {
	for lag, want := range map[int64]bool{-1: true, 7: false} {
		var text strings.Builder
		Service{Unread: lag, Groups: []operate.Group{{Group: "a"}, {Group: "b", Lag: lag}}}.Table(&text)
		if got := strings.Contains(text.String(), "lag unknown: Redis does not count"); got != want || strings.Contains(text.String(), "some unread") != want {
			t.Errorf("lag %d:\n%s", lag, &text)
		}
	}
}
