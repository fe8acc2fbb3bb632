package main

import "testing"

// skipUnderRace skips the test of a benchmark under the race detector, which makes it many times slower.
func skipUnderRace(t *testing.T) {
	t.Helper()
	if underRace {
		t.Skip("too slow under the race detector")
	}
}
