package main

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"lockstep/bench/pushes"
	"lockstep/bench/stream"
	"lockstep/internal/cli/term"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

func TestBenchStreamComparesAndCleansUp(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, tc := range map[string]struct {
		args []string
		rows []string
	}{
		"a handler that does nothing": {nil, []string{"lockstep", "one stock subscriber", "2 stock subscribers", "go-redis, batches"}},
		"lease, result and settlement": {
			[]string{"--settle", "--slots", "2", "--peer", "again=bench hot-worker"}, []string{"lockstep", "again"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"stream", "--redis", server.URL(), "--events", "60", "--subscribers", "2", "--rounds", "1", "--json"}, tc.args...)
			stdout, stderr, code := runProcess(t, args...)
			if code != term.ExitDone {
				t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
			}
			var report stream.Report
			if err := json.Unmarshal([]byte(stdout), &report); err != nil {
				t.Fatalf("%v in %q", err, stdout)
			}
			var names []string
			for _, row := range report.Rows {
				names = append(names, row.Name)
				if row.PerSecond <= 0 || row.Ratio <= 0 {
					t.Errorf("%+v; want figures", row)
				}
			}
			if strings.Join(names, ";") != strings.Join(tc.rows, ";") {
				t.Errorf("rows %q; want %q", names, tc.rows)
			}
			if left := proctest.Must(server.Client().Keys(t.Context(), "lockstep-bench:*").Result())(t); len(left) > 0 {
				t.Errorf("keys left: %q", left)
			}
		})
	}
}

func TestBenchPushesAnswersEachPushOnce(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("no redis-server in PATH")
	}
	stdout, stderr, code := runProcess(t, "pushes", "--pushes", "300", "--files", "3", "--json")
	if code != term.ExitDone {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	var report pushes.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	if report.Fetches < 1 || report.Fetches > 3 || report.Asked < report.Fetches || report.Took <= 0 {
		t.Errorf("%+v; want one to three fetches", report)
	}
}

func TestBenchStreamAndPushesUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"stream", "--events", "0"}, {"stream", "--rounds", "0"}, {"stream", "--slots", "0"}, {"stream", "--peer", "a=b"},
		{"pushes", "--pushes", "0"}, {"pushes", "--files", "0"}, {"pushes", "--timeout", "0s"}, {"pushes", "more"},
	} {
		if _, stderr, code := runProcess(t, args...); code != term.ExitUsage || strings.Count(stderr, "\n") != 1 {
			t.Errorf("bench %q: exit code %d, %q; want 2 and one line", args, code, stderr)
		}
	}
}
