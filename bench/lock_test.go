package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"lockstep/bench/lock"
	"lockstep/internal/cli/term"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// runBench runs the bench command in this process.
func runBench(t *testing.T, stdin io.Reader, stdout io.Writer, args ...string) error {
	t.Helper()
	cmd := newCommand(term.Streams{Stdout: stdout, Stderr: io.Discard})
	cmd.SetIn(stdin)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(io.Discard)
	return cmd.ExecuteContext(t.Context())
}

func TestBenchLockMeasuresProcessesAndPeers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var report lock.Report
	proctest.WithLongerTimeouts(t, 300*time.Millisecond, func(d time.Duration) error {
		stdout, stderr, code := runProcess(t, "lock", "--redis", server.URL(), "--processes", "2", "--waiters", "2",
			"--hold", "1ms", "--duration", d.String(), "--rounds", "1", "--peer", "again=bench lock-worker", "--json")
		if code != term.ExitDone {
			t.Fatalf("exit code %d\n%s", code, stderr)
		}
		report = lock.Report{}
		if err := json.Unmarshal([]byte(stdout), &report); err != nil {
			t.Fatalf("%v in %q", err, stdout)
		}
		if len(report.Contestants) != 2 || report.Contestants[1].Name != "again" {
			t.Fatalf("contestants %+v; want lockstep and again", report.Contestants)
		}
		for _, c := range report.Contestants {
			m := c.Median
			if len(c.Rounds) != 1 || m.Overlaps != 0 || m.Busy > 1 {
				t.Fatalf("%s: %+v; want a round, and no two at once", c.Name, c)
			}
			if m.Grants == 0 || m.PerWaiter.Fewest == 0 || m.Busy <= 0 || m.Between.P99 <= 0 {
				return fmt.Errorf("%s: %+v; want everybody to get the key in %v", c.Name, c, d)
			}
		}
		return nil
	})
	var table bytes.Buffer
	if err := report.Table(&table); err != nil || !strings.Contains(table.String(), "again") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

func TestBenchLockFailsIfHoldersOverlap(t *testing.T) {
	sound := lock.Result{Name: "sound"}
	broken := lock.Result{Name: "broken", Median: lock.HandOffs{Overlaps: 3}}
	if err := (lock.Report{Contestants: []lock.Result{sound}}).Verdict(); err != nil {
		t.Errorf("got %v; want no error", err)
	}
	err := lock.Report{Contestants: []lock.Result{sound, broken}}.Verdict()
	if err == nil || term.ExitCode(err) != term.ExitFailed || !strings.Contains(err.Error(), "broken") || strings.Contains(err.Error(), "sound") {
		t.Errorf("got %v; want one that names the broken lock", err)
	}
}

func TestBenchLockUncontendedComparesWithRawScripts(t *testing.T) {
	server := redistest.Start(t)
	var stdout bytes.Buffer
	if err := runBench(t, nil, &stdout, "lock", "--uncontended", "--redis", server.URL(), "--duration", "50ms", "--rounds", "2", "--json"); err != nil {
		t.Fatal(err)
	}
	var report lock.PairsReport
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Rows) != 2 || report.Rows[0].Goroutines != 1 || report.Rows[1].Goroutines != 16 {
		t.Fatalf("rows %+v; want one of 1 and one of 16 goroutines", report.Rows)
	}
	for _, row := range report.Rows {
		if row.Locker <= 0 || row.Raw <= 0 || row.Ratio <= 0 {
			t.Errorf("%+v; want pairs of both", row)
		}
	}
	left := proctest.Must(server.Client().Keys(t.Context(), "*:raw*").Result())(t)
	if len(left) > 0 {
		t.Errorf("keys left: %q", left)
	}
}

func TestBenchLockWithFaults(t *testing.T) {
	testenv.Long(t)
	redistest.StartReal(t).Stop() // skips the test without redis-server; the benchmark starts its own
	var report lock.FaultReport
	proctest.WithLongerTimeouts(t, 500*time.Millisecond, func(lease time.Duration) error {
		stdout, stderr, code := runProcess(t, "lock", "--faults", "--processes", "3", "--waiters", "2",
			"--duration", (6 * lease).String(), "--lease", lease.String(), "--json")
		report = lock.FaultReport{}
		if err := json.Unmarshal([]byte(stdout), &report); err != nil {
			t.Fatalf("%v in %q\n%s", err, stdout, stderr)
		}
		f := report.Figures
		if f.Inversions+f.TwoOwners+f.BegunTwice > 0 || f.MayGap != lease+time.Second {
			t.Fatalf("%+v, exit code %d\n%s", f, code, stderr)
		}
		if code != term.ExitDone || f.Grants == 0 || f.LongestGap <= 0 || f.LongestGap < f.LongestGapUp || f.Down <= 0 {
			return fmt.Errorf("%+v; want grants, gaps no longer than a lease, and a Redis that was down; exit code %d\n%s", f, code, stderr)
		}
		return nil
	})
	kinds := map[string]int{}
	for _, fault := range report.Faults {
		kinds[fault.Kind]++
	}
	for _, kind := range []string{lock.FaultKill, lock.FaultStop, lock.FaultPubSub, lock.FaultRestart, lock.FaultEmpty} {
		if kinds[kind] == 0 {
			t.Errorf("faults %v; want one of each kind, and %q too", kinds, kind)
		}
	}
	var table bytes.Buffer
	if err := report.Table(&table); err != nil || !strings.Contains(table.String(), "longest gap, Redis up, s") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

func TestBenchLockUsageErrors(t *testing.T) {
	for name, args := range map[string][]string{
		"no waiters":           {"--waiters", "0"},
		"no processes":         {"--processes", "0"},
		"no rounds":            {"--rounds", "0"},
		"no time":              {"--duration", "0s"},
		"a negative hold":      {"--hold", "-1ms"},
		"two measurements":     {"--uncontended", "--hold-many", "3"},
		"idle peers":           {"--uncontended", "--peer", "a=b"},
		"shorter than a lease": {"--hold-many", "3", "--duration", "1s"},
		"a lease for nothing":  {"--lease", "1s"},
		"faults elsewhere":     {"--faults", "--redis", "redis://127.0.0.1:1"},
		"faults and peers":     {"--faults", "--peer", "a=b"},
		"faults and nothing":   {"--faults", "--uncontended"},
		"nobody left":          {"--faults", "--processes", "2"},
		"too short a lease":    {"--faults", "--lease", "100ms"},
		"too soon over":        {"--faults", "--duration", "5s"},
		"an argument":          {"now"},
		"no Redis URL":         {"--redis", "ftp://nowhere"},
	} {
		if err := runBench(t, nil, io.Discard, append([]string{"lock"}, args...)...); term.ExitCode(err) != term.ExitUsage {
			t.Errorf("%s: got %v; want a usage error", name, err)
		}
	}
}
