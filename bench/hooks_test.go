package main

import (
	"testing"

	"lockstep/internal/cli/term"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func TestWebhookStormEndsInPublishedTrees(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	t.Parallel()
	redistest.StartReal(t) // skips the test without redis-server; the benchmark starts its own
	stdout, stderr, code := runProcess(t, "hooks", "--storm", "300", "--repos", "10", "--json", "--timeout", "2m")
	if code != term.ExitDone {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	report := proctest.DecodeJSON(t, stdout)
	if report["redis_kills"] != 2.0 || report["spooled"] == 0.0 || report["refused"] != 0.0 {
		t.Errorf("report %v", report)
	}
}
