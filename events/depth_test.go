package events_test

import (
	"testing"

	"lockstep/events"
)

func TestDepth(t *testing.T) {
	for text, want := range map[string]events.Depth{"": 0, "1": 1, "50": 50, "1000000": 1_000_000, "full": events.DepthFull} {
		got, err := events.ParseDepth(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q: %d, %q, %v", text, got, got, err)
		}
	}
	for _, text := range []string{"0", "-1", "+1", "1000001", "Full", " 1", "1.0"} {
		if _, err := events.ParseDepth(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
	for _, tc := range []struct {
		has, wants events.Depth
		covers     bool
	}{
		{0, 0, true}, {0, 1, true}, {1, 0, true}, {0, 2, false}, {5, 5, true}, {5, 4, true}, {4, 5, false},
		{events.DepthFull, events.DepthFull, true}, {events.DepthFull, 5, true}, {5, events.DepthFull, false},
	} {
		if got := tc.has.Covers(tc.wants); got != tc.covers {
			t.Errorf("%q covers %q: %v", tc.has, tc.wants, got)
		}
	}
}
