package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/term"
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
	lockstep := filepath.Join(t.TempDir(), "lockstep")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "..", "-trimpath", "-o", lockstep, "./cmd/lockstep").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, args := range [][]string{
		{"hot", "--duration", "300ms", "--backlog", "2", "--beside", "2", "--work", "1ms", "--rounds", "1"},
		{"hot", "--against", lockstep, "--beside", "2", "--duration", "1s", "--backlog", "3", "--delay", "100ms", "--rounds", "1"},
		{"hot", "--serve", "--beside", "hung,limited,redishang,huge", "--duration", "1s", "--rounds", "1"},
		{"lock", "--processes", "2", "--waiters", "2", "--hold", "1ms", "--duration", "1s", "--rounds", "1"},
		{"lock", "--faults", "--duration", "2s", "--lease", "500ms"},
		{"stream", "--events", "2000", "--rounds", "1"},
		{"stream", "--settle", "--events", "200", "--rounds", "1"},
		{"stream", "--against", lockstep, "--changes", "20", "--rounds", "1"},
		{"stream", "--publishers", "1,4", "--duration", "300ms", "--rounds", "1"},
		{"publish", "--sizes", "20", "--pushes", "2", "--rounds", "1"},
		{"publish", "burst", "--pushes", "10", "--refs", "2"},
		{"publish", "open", "--repos", "5", "--rates", "10", "--duration", "1s"},
		{"availability", "--duration", "2s", "--files", "20"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), self, slices.Concat(args, []string{"--json"})...)
			cmd.Env = append(os.Environ(), runVariable+"=1", "BENCH_LOCKSTEP="+lockstep)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			if stdout, err := cmd.Output(); err != nil || !strings.HasPrefix(string(stdout), "{") {
				t.Errorf("%v\n%s\n%s", err, stdout, stderr.String())
			}
		})
	}
}
