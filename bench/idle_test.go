package main

import (
	"encoding/json"
	"os/exec"
	"testing"

	"lockstep/bench/idle"
	"lockstep/internal/cli/term"
)

func TestBenchIdle(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(err)
	}
	stdout, stderr, code := runProcess(t, "idle", "--repos", "5", "--duration", "1s", "--json")
	if code != term.ExitDone {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	var result idle.Report
	if err := json.Unmarshal([]byte(stdout), &result); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	if result.Repos != 5 || result.RSS < 1<<20 || result.Peak < result.RSS || result.SyncedIn <= 0 {
		t.Errorf("%+v", result)
	}
}
