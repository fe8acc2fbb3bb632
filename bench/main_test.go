package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/cli/term"
)

// runVariable makes this test binary the bench command, for the processes that benchmarks start too.
const runVariable = "BENCH_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runVariable) != "" {
		term.Main(run)
	}
	os.Exit(m.Run())
}

// TestEachBenchmarkRuns runs each benchmark for about a second.
func TestEachBenchmarkRuns(t *testing.T) {
	for _, program := range []string{"redis-server", "git"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"hot", "--events", "40", "--repos", "5", "--work", "1ms", "--rounds", "1"},
		{"starve", "hung", "--repos", "2", "--calm", "1s", "--duration", "2s"},
		{"starve", "hotrefs", "--hot", "1", "--branches", "2", "--cold", "4", "--delay", "10ms"},
		{"starve", "redishang", "--jobs", "2", "--hang", "1s", "--work", "1s"},
		{"starve", "huge", "--entries", "3", "--megabytes", "1"},
		{"starve", "limited", "--repos", "3", "--calm", "1s", "--retry-after", "3s"},
		{"lock", "--processes", "2", "--waiters", "2", "--hold", "1ms", "--duration", "1s", "--rounds", "1"},
		{"lock", "--uncontended", "--duration", "200ms", "--rounds", "1"},
		{"lock", "--hold-many", "100", "--duration", "1s"},
		{"lock", "--faults", "--duration", "2s", "--lease", "500ms"},
		{"stream", "--events", "2000", "--subscribers", "2", "--rounds", "1"},
		{"stream", "--settle", "--events", "200", "--rounds", "1"},
		{"publish", "--sizes", "20", "--pushes", "2", "--rounds", "1"},
		{"publish", "burst", "--pushes", "10", "--refs", "2"},
		{"publish", "open", "--repos", "5", "--rates", "10", "--duration", "1s"},
		{"availability", "--duration", "2s", "--files", "20"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), self, slices.Concat(args, []string{"--json"})...)
			cmd.Env = append(os.Environ(), runVariable+"=1")
			var stderr strings.Builder
			cmd.Stderr = &stderr
			if stdout, err := cmd.Output(); err != nil || !strings.HasPrefix(string(stdout), "{") {
				t.Errorf("%v\n%s\n%s", err, stdout, stderr.String())
			}
		})
	}
}
