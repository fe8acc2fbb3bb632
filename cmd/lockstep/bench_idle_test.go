package main

import (
	"encoding/json"
	"os/exec"
	"testing"
)

func TestBenchIdle(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(err)
	}
	stdout, stderr, code := runLockstep(t, nil, "bench", "idle", "--repos", "5", "--duration", "1s", "--json")
	if code != exitDone {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	var result idleResult
	if err := json.Unmarshal([]byte(stdout), &result); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	if result.Repos != 5 || result.RSS < 1<<20 || result.Peak < result.RSS || result.SyncedIn <= 0 {
		t.Errorf("%+v", result)
	}
}
