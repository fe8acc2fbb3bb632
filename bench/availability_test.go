package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/bench/availability"
	"lockstep/internal/cli/term"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

func TestBenchAvailabilityOfLockstepIsComplete(t *testing.T) {
	testenv.Long(t)
	skipUnderRace(t)
	t.Parallel()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(err)
	}
	plot := filepath.Join(t.TempDir(), "plot.svg")
	stdout, stderr, code := runProcess(t, "availability", "--duration", "4s", "--files", "60", "--readers", "2", "--plot", plot, "--json")
	if code != term.ExitDone {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	var report availability.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	if len(report.Contestants) != 3 {
		t.Fatalf("contestants %+v; want three", report.Contestants)
	}
	for _, c := range report.Contestants {
		if c.Reads == 0 || c.Syncs == 0 || c.Pushes == 0 || c.Forced != c.Pushes/availability.ForcedEvery || len(c.OverTime) == 0 {
			t.Errorf("%s: %+v; want reads, syncs and pushes, every tenth by force", c.Name, c)
		}
		if (c.Name == availability.SideLockstep) != (c.Killed > 0) {
			t.Errorf("%s: %d workers were killed", c.Name, c.Killed)
		}
	}
	if c := report.Contestants[2]; c.Name != availability.SideLockstep || c.Whole != c.Reads || c.Failed > 0 {
		t.Errorf("%+v; want Lockstep, and all its reads whole", c)
	}
	svg := string(proctest.Must(os.ReadFile(plot))(t))
	if !strings.HasPrefix(svg, "<svg") || strings.Count(svg, "<polyline") != 3 {
		t.Errorf("the plot is %s", svg)
	}
	var table bytes.Buffer
	if err := report.Table(&table); err != nil || !strings.Contains(table.String(), "100.000 %") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

func TestBenchAvailabilityFailsIfAReadWasIncomplete(t *testing.T) {
	result := func(name string, whole int) availability.Result {
		return availability.Result{Name: name, Figures: availability.Figures{Reads: 100_000, Whole: whole, Versions: 9, Missing: 100_000 - whole}}
	}
	sound := availability.Report{Contestants: []availability.Result{result("reset in place", 3), result(availability.SideLockstep, 100_000)}}
	if err := sound.Verdict(); err != nil {
		t.Errorf("got %v; want no error", err)
	}
	for name, report := range map[string]availability.Report{
		"one read":       {Contestants: []availability.Result{result(availability.SideLockstep, 99_999)}},
		"did not happen": {Contestants: []availability.Result{result("reset in place", 100_000)}},
	} {
		if err := report.Verdict(); err == nil || term.ExitCode(err) != term.ExitFailed {
			t.Errorf("%s: got %v; want a failure", name, err)
		}
	}
}

func TestBenchAvailabilityUsageErrors(t *testing.T) {
	for name, args := range map[string][]string{
		"no time":     {"--duration", "0s"},
		"one file":    {"--files", "1"},
		"no readers":  {"--readers", "0"},
		"no workers":  {"--workers", "0"},
		"an argument": {"now"},
	} {
		if err := runBench(t, nil, io.Discard, append([]string{"availability"}, args...)...); term.ExitCode(err) != term.ExitUsage {
			t.Errorf("%s: got %v; want a usage error", name, err)
		}
	}
}
