package wire

import (
	"strings"
	"testing"

	"lockstep/events"
)

// must fails the test if err is set: must(f())(t).
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func mustFail(t *testing.T, err error, class events.Class, disposition events.Disposition) {
	t.Helper()
	if events.ClassOf(err) != class || events.DispositionOf(err) != disposition {
		t.Fatalf("got %s, %s (%v), want %s, %s", events.ClassOf(err), events.DispositionOf(err), err, class, disposition)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has more than one line: %v", err)
	}
}

// notUnderRace skips a test that is too slow under the race detector; "make test-large" runs it without.
func notUnderRace(t *testing.T) {
	t.Helper()
	if underRace {
		t.Skip("see make test-large")
	}
}

const secret = "s3cr3t-t0k3n"
