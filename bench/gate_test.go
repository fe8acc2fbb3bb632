package main

import (
	"testing"

	"lockstep/internal/proctest"
)

// skipUnderRace skips the test of a benchmark under the race detector, which makes it many times slower.
func skipUnderRace(t *testing.T) {
	t.Helper()
	if proctest.UnderRace {
		t.Skip("too slow under the race detector")
	}
}
