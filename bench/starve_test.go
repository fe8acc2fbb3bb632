package main

import (
	"encoding/json"
	"os/exec"
	"slices"
	"testing"

	"lockstep/bench/starve"
	"lockstep/internal/cli/term"
)

// Short runs of the cases, without enough load to starve anything.
func TestBenchStarve(t *testing.T) {
	skipUnderRace(t)
	for _, program := range []string{"redis-server", "git"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	for name, args := range map[string][]string{
		"hung":      {"--repos", "2", "--calm", "1s", "--duration", "2s"},
		"hotkeys":   {"--hot", "1", "--changes", "2", "--cold", "2", "--work", "10ms", "--every", "10ms"},
		"hotrefs":   {"--hot", "1", "--branches", "2", "--cold", "4", "--delay", "10ms"},
		"redishang": {"--jobs", "2", "--hang", "1s", "--work", "1s"},
		"huge":      {"--entries", "3", "--megabytes", "1"},
		"limited":   {"--repos", "3", "--calm", "1s", "--retry-after", "3s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := runProcess(t, slices.Concat([]string{"starve", name}, args, []string{"--json"})...)
			if code != term.ExitDone {
				t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
			}
			var report starve.Report
			if err := json.Unmarshal([]byte(stdout), &report); err != nil {
				t.Fatalf("%v in %q", err, stdout)
			}
			if report.Case != name || len(report.Figures) == 0 {
				t.Errorf("report %+v", report)
			}
			for _, latency := range []*starve.Latency{report.Calm, report.Loaded} {
				if latency != nil && (latency.Changes == 0 || latency.P50 <= 0 || latency.Pending+latency.Failed > 0) {
					t.Errorf("latency %+v; want that of synced changes", *latency)
				}
			}
			for _, figure := range report.Figures {
				if figure.Value > 0 && slices.Contains([]string{"limited changes not synced", "jobs without a result", "entries never acked"}, figure.Name) {
					t.Errorf("%s: %v", figure.Name, figure.Value)
				}
			}
		})
	}
}
