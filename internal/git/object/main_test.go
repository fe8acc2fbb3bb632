package object

import (
	"context"
	"strings"
	"testing"
	"time"

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

// soon returns a context that bounds how long a test waits.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// notUnderRace skips a test that is too slow under the race detector; "make test-large" runs it without.
func notUnderRace(t *testing.T) {
	t.Helper()
	if underRace {
		t.Skip("see make test-large")
	}
}

// flipped returns content with one bit changed in its i-th byte.
func flipped(content []byte, i int) []byte {
	spoilt := append([]byte(nil), content...)
	spoilt[i] ^= 0x40
	return spoilt
}
