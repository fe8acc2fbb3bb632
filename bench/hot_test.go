package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"lockstep/bench/hot"
	"lockstep/internal/cli/term"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

func TestBenchHotWithoutFaults(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	stdout, stderr, code := runProcess(t, "hot", "--redis", server.URL(), "--events", "40", "--repos", "5", "--work", "1ms",
		"--processes", "2", "--slots", "2", "--rounds", "1", "--peer", "again=bench hot-worker", "--json")
	if code != term.ExitDone {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	var report hot.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	if len(report.Contestants) != 2 || report.Contestants[1].Name != "again" {
		t.Fatalf("contestants %+v; want lockstep and again", report.Contestants)
	}
	for _, c := range report.Contestants {
		if err := c.Summary.Err(); err != nil || len(c.Rounds) != 1 || c.Summary.RatioP50.Median <= 0 || c.Summary.RatioP99.Median <= 0 {
			t.Errorf("%s: %+v (%v); want a round without faults", c.Name, c, err)
		}
		for _, r := range c.Rounds {
			// The minimum time for the 20 hot events, one at a time.
			if r.Hot.AllDone < 20*time.Millisecond || r.Hot.Cold.Max > r.Hot.AllDone || r.Calm.Cold.Max != r.Calm.AllDone {
				t.Errorf("%s: %+v; want the hot ones counted in all done alone", c.Name, r)
			}
		}
	}
	if left := proctest.Must(server.Client().Keys(t.Context(), "lockstep-bench:*").Result())(t); len(left) > 0 {
		t.Errorf("keys left: %q", left)
	}
	var table bytes.Buffer
	if err := report.Table(&table); err != nil || !strings.Contains(table.String(), "again") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

func TestBenchHotFailsIfEventsAreLost(t *testing.T) {
	sound := hot.Result{Name: "sound"}
	broken := hot.Result{Name: "broken", Summary: hot.Summary{Lost: 3}}
	if err := (hot.Report{Contestants: []hot.Result{sound}}).Verdict(); err != nil {
		t.Errorf("got %v; want no error", err)
	}
	err := hot.Report{Contestants: []hot.Result{sound, broken}}.Verdict()
	if err == nil || term.ExitCode(err) != term.ExitFailed || !strings.Contains(err.Error(), "broken") || strings.Contains(err.Error(), "sound") {
		t.Errorf("got %v; want one that names who loses events", err)
	}
}

func TestBenchHotUsageErrors(t *testing.T) {
	for name, args := range map[string][]string{
		"no processes":              {"hot", "--processes", "0"},
		"no slots":                  {"hot", "--slots", "0"},
		"no rounds":                 {"hot", "--rounds", "0"},
		"one repository":            {"hot", "--repos", "1"},
		"one event":                 {"hot", "--events", "1"},
		"no work":                   {"hot", "--work", "0s"},
		"work of part of a moment":  {"hot", "--work", "1500us"},
		"no time":                   {"hot", "--limit", "0s"},
		"a peer without a command":  {"hot", "--peer", "x"},
		"an argument":               {"hot", "now"},
		"no Redis URL":              {"hot", "--redis", "ftp://nowhere"},
		"a worker without a part":   {"hot-worker"},
		"a worker of another part":  {"hot-worker", "play"},
		"a worker without a prefix": {"hot-worker", "queue", "--redis", "redis://127.0.0.1:1"},
	} {
		if err := runBench(t, nil, io.Discard, args...); term.ExitCode(err) != term.ExitUsage {
			t.Errorf("%s: got %v; want a usage error", name, err)
		}
	}
}
