package events_test

import (
	"testing"
	"time"

	"lockstep/events"
)

func TestEntryTime(t *testing.T) {
	for id, want := range map[string]time.Time{
		"1795223511284-0":         time.Date(2026, 11, 21, 1, 11, 51, 284e6, time.UTC),
		"1795223511284":           {},
		"0-1":                     {},
		"":                        {},
		"1795223511284-x":         {},
		"-5-0":                    {},
		"18446744073709551615-0":  {},
		"184467440737095516150-0": {},
	} {
		if got := events.EntryTime(id); got != want {
			t.Errorf("EntryTime(%q) = %v, want %v", id, got, want)
		}
	}
}
