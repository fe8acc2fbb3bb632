package main

import (
	"encoding/json"
	"os/exec"
	"testing"

	"lockstep/bench/lfs"
	"lockstep/internal/cli/term"
)

func TestBenchLFSReports(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git-lfs"); err != nil {
		t.Skip("git-lfs is not installed")
	}
	stdout, stderr, _ := runProcess(t, "lfs", "--objects", "5", "--bytes", "2000", "--rounds", "1", "--json")
	var report lfs.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout, stderr)
	}
	if len(report.Sides) != 2 || report.Downloads != 1 || report.Memory == 0 || report.Push == 0 || report.Sides[0].P50 == 0 || report.Sides[1].P50 == 0 {
		t.Errorf("%+v", report)
	}
	if _, stderr, code := runProcess(t, "lfs", "--objects", "0"); code != term.ExitUsage {
		t.Errorf("no objects: exit code %d: %s", code, stderr)
	}
}
