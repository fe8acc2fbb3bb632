package main

import (
	"encoding/json"
	"testing"

	"lockstep/bench/look"
	"lockstep/internal/cli/term"
)

func TestBenchLookReports(t *testing.T) {
	t.Parallel()
	stdout, stderr, code := runProcess(t, "look", "--refs", "5000", "--rounds", "3", "--json")
	var report look.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != term.ExitDone {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	bytes := map[string]int64{}
	for _, s := range report.Sides {
		bytes[s.Side] = s.Bytes
		if len(s.Took) != 3 || s.P50 <= 0 {
			t.Errorf("%+v", s)
		}
	}
	if later, first := bytes[look.SideLater], bytes[look.SideFirst]; later <= 0 || later >= first || first > 2000 || bytes[look.SideGit] < 300_000 {
		t.Errorf("%v", bytes)
	}
	if _, stderr, code := runProcess(t, "look", "--refs", "0"); code != term.ExitUsage {
		t.Errorf("no refs: exit code %d: %s", code, stderr)
	}
}
