package telemetry_test

import (
	"testing"

	"lockstep/events/stream"
	"lockstep/internal/telemetry"
)

func TestDemand(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		group *stream.GroupStatistics // nil: there is none
		want  telemetry.Demand
		needs int64 // consumers with four slots
	}{
		"before the first consumer":     {nil, telemetry.Demand{Ready: 9}, 3},
		"nothing to do":                 {&stream.GroupStatistics{}, telemetry.Demand{}, 0},
		"one unread":                    {&stream.GroupStatistics{Lag: 1}, telemetry.Demand{Ready: 1}, 1},
		"unread, how many is unknown":   {&stream.GroupStatistics{Lag: -1}, telemetry.Demand{Ready: 1}, 1},
		"all slots busy":                {&stream.GroupStatistics{Pending: 4}, telemetry.Demand{Running: 4}, 1},
		"one more than slots":           {&stream.GroupStatistics{Lag: 1, Pending: 4}, telemetry.Demand{Ready: 1, Running: 4}, 2},
		"only parked":                   {&stream.GroupStatistics{Pending: 500, Parked: 500}, telemetry.Demand{Parked: 500}, 0},
		"some of the parked are due":    {&stream.GroupStatistics{Pending: 500, Parked: 500, Late: 5}, telemetry.Demand{Ready: 5, Parked: 495}, 2},
		"held by a consumer that died":  {&stream.GroupStatistics{Pending: 3, Late: 3}, telemetry.Demand{Running: 3}, 1},
		"parked are counted later":      {&stream.GroupStatistics{Pending: 3, Parked: 4}, telemetry.Demand{Parked: 4}, 0},
		"due, of both, with one unread": {&stream.GroupStatistics{Lag: 1, Pending: 6, Parked: 2, Late: 3}, telemetry.Demand{Ready: 3, Running: 4}, 2},
	} {
		s := stream.Statistics{Length: 9}
		if tc.group != nil {
			tc.group.Name = "workers"
			s.Groups = []stream.GroupStatistics{*tc.group}
		}
		got := telemetry.DemandOf(s, "workers")
		if got != tc.want || got.Consumers(4) != tc.needs {
			t.Errorf("%s: %+v for %d consumers, want %+v for %d", name, got, got.Consumers(4), tc.want, tc.needs)
		}
	}
	if n := (telemetry.Demand{Ready: 3}).Consumers(0); n != 3 {
		t.Errorf("%d consumers without slots, want 3", n)
	}
}
