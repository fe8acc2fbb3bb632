package main

import (
	"encoding/json"
	"strings"
	"testing"

	"lockstep/bench/workspace"
	"lockstep/internal/cli/term"
	"lockstep/internal/testenv"
)

func TestBenchWorkspaceReports(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	stdout, stderr, _ := runProcess(t, "workspace", "--files", "50", "--rounds", "2", "--peer-rounds", "1", "--at-once", "3", "--bytes", "5000", "--json")
	if strings.Contains(stderr, "mount the overlay") || strings.Contains(stderr, "user namespace") {
		t.Skip(stderr)
	}
	var report workspace.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout, stderr)
	}
	if c := report.AtOnce; c.Workspaces != 3 || c.Foreign != 0 || c.Altered || c.Left != 0 || c.Disk < 15_000 || len(report.Sides) != 5 || report.Sides[0].P50 <= 0 || len(report.Sides[4].Took) != 1 {
		t.Errorf("%+v", report)
	}
	if _, stderr, code := runProcess(t, "workspace", "--files", "0"); code != term.ExitUsage {
		t.Errorf("no files: exit code %d: %s", code, stderr)
	}
}
