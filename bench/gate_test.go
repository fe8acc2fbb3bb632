package main

import (
	"testing"

	"lockstep/internal/proctest"
)

// longBench skips a benchmark's own test under the race detector, which makes it many times longer; the tests with an
// embedded Redis run without.
func longBench(t *testing.T) {
	t.Helper()
	if proctest.UnderRace {
		t.Skip("a benchmark, and the race detector is on")
	}
}
