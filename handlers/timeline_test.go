package handlers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lockstep/events"
)

// stagesOf lists a timeline's stages with their length in ms.
func stagesOf(t Timeline) string {
	var all []string
	for stage, took := range t.Stages {
		all = append(all, fmt.Sprintf("%s %d", stage, took.Milliseconds()))
	}
	return strings.Join(all, ", ")
}

func TestStages(t *testing.T) {
	zero := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	whole := Timeline{Operation: "sync", Received: at(0), Queued: at(1), Delivered: at(3), Leased: at(7), Began: at(15), Fetched: at(31), Published: at(63)}
	with := func(edit func(*Timeline)) Timeline {
		changed := whole
		edit(&changed)
		return changed
	}
	for name, tc := range map[string]struct {
		in      Timeline
		outcome string
		want    string
		total   int // ms; -1 if unknown
	}{
		"a sync":         {whole, "synced", "receive 1, queue 2, lease 4, slot 8, fetch 16, publish 32, settle 64", 127},
		"the second try": {with(func(t *Timeline) { t.Again = true }), "synced", "receive 1, retry 2, lease 4, slot 8, fetch 16, publish 32, settle 64", 127},
		"no receipt time": {
			with(func(t *Timeline) { t.Received = time.Time{} }), "synced", "queue 2, lease 4, slot 8, fetch 16, publish 32, settle 64", 126,
		},
		"the publisher's clock is ahead": {
			with(func(t *Timeline) { t.Received = at(2) }), "synced", "receive 0, queue 1, lease 4, slot 8, fetch 16, publish 32, settle 64", 125,
		},
		"Redis' clock is ahead": {
			with(func(t *Timeline) { t.Queued = at(5) }), "synced", "receive 5, queue 0, lease 2, slot 8, fetch 16, publish 32, settle 64", 127,
		},
		"Redis' clock is ahead of everything": {
			with(func(t *Timeline) { t.Queued = at(1000) }), "synced", "receive 1000, queue 0, lease 0, slot 0, fetch 0, publish 0, settle 0", 1000,
		},
		"the remote was not asked": {
			with(func(t *Timeline) { t.Fetched = time.Time{} }), "unchanged", "receive 1, queue 2, lease 4, slot 8, publish 48, settle 64", 127,
		},
		"a removal": {
			with(func(t *Timeline) { t.Operation, t.Fetched = "remove", time.Time{} }), "removed", "receive 1, queue 2, lease 4, slot 8, work 48, settle 64", 127,
		},
		"coalesced":               {Timeline{Operation: "sync", Received: at(0), Queued: at(1)}, "coalesced", "receive 1, coalesced 126", 127},
		"failed":                  {Timeline{Operation: "sync", Received: at(0), Queued: at(1), Delivered: at(3)}, "failed", "receive 1, queue 2", 127},
		"entry ID without a time": {Timeline{Operation: "sync", Received: at(0), Delivered: at(3)}, "failed", "queue 3", 127},
		"unknown":                 {Timeline{Operation: "sync"}, "coalesced", "", -1},
	} {
		t.Run(name, func(t *testing.T) {
			ended := tc.in.ended(tc.outcome, at(127))
			if got := stagesOf(ended); got != tc.want {
				t.Errorf("stages %s, want %s", got, tc.want)
			}
			total, ok := ended.Total()
			if ok != (tc.total >= 0) || ok && total != time.Duration(tc.total)*time.Millisecond {
				t.Errorf("total %v %t, want %d ms", total, ok, tc.total)
			}
			for range ended.Stages { // must tolerate an early break
				break
			}
		})
	}
}

func TestImplausibleTimesAreIgnored(t *testing.T) {
	now := time.Now()
	entry := func(at time.Time) string { return fmt.Sprintf("%d-0", at.UnixMilli()) }
	for name, tc := range map[string]struct {
		received time.Time
		entry    string
		want     [2]bool // whether Received and Queued are known
	}{
		"both make sense":                 {now.Add(-time.Second), entry(now), [2]bool{true, true}},
		"received after it was queued":    {now.Add(30 * time.Second), entry(now), [2]bool{true, true}}, // clocks differ
		"received tomorrow":               {now.Add(24 * time.Hour), entry(now), [2]bool{false, true}},
		"received long ago":               {time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), entry(now), [2]bool{false, true}},
		"received at the end of time":     {time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), entry(now), [2]bool{false, true}},
		"no receipt time":                 {time.Time{}, entry(now), [2]bool{false, true}},
		"a week in the stream":            {now.Add(-8 * 24 * time.Hour), entry(now.Add(-8 * 24 * time.Hour)), [2]bool{true, true}},
		"an entry of the publisher's own": {now, "7-0", [2]bool{true, false}},
		"an entry from tomorrow":          {now, entry(now.Add(24 * time.Hour)), [2]bool{true, false}},
		"no entry":                        {now, "", [2]bool{true, false}},
		"an entry beyond all numbers":     {now, "99999999999999999999-0", [2]bool{true, false}},
		"received long ago, no entry":     {now.AddDate(-1, 0, 0), "", [2]bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			got := queued(events.Change{Type: events.ChangePushed, Time: tc.received}, tc.entry)
			if known := [2]bool{!got.Received.IsZero(), !got.Queued.IsZero()}; known != tc.want {
				t.Errorf("received and queued are known: %v, want %v", known, tc.want)
			}
			for stage, took := range got.ended("coalesced", now).Stages {
				if took < 0 || took > 9*24*time.Hour {
					t.Errorf("%s took %v", stage, took)
				}
			}
		})
	}
}
