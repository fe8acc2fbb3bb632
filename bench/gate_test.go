package main

import "testing"

// longBench skips a benchmark's own test under the race detector, which makes it many times longer; the tests with an
// embedded Redis run without.
func longBench(t *testing.T) {
	t.Helper()
	if underRace {
		t.Skip("a benchmark, and the race detector is on")
	}
}
