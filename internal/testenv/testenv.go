// Package testenv has helpers for all tests. It also chooses how much of a test suite runs: the everyday form, or with
// LOCKSTEP_TEST=all also the long forms, such as storms, failovers and many processes.
package testenv

import (
	"context"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/events"
)

// All reports whether LOCKSTEP_TEST=all asks for the long forms.
func All() bool { return os.Getenv("LOCKSTEP_TEST") == "all" }

// Long skips the test unless the long forms are asked for.
func Long(t testing.TB) {
	t.Helper()
	if !All() {
		t.Skip("long form: run make test-all, or set LOCKSTEP_TEST=all")
	}
}

// Form returns everyday, or long if the long forms are asked for: a number of rounds, a duration.
func Form[T any](everyday, long T) T {
	if All() {
		return long
	}
	return everyday
}

// Parallel lets n tests run at a time, for a package whose tests mostly wait. TestMain calls it before it
// runs the tests; go test -parallel overrides it.
func Parallel(n int) {
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err)
	}
}

// SkipUnderRace skips a test that takes minutes under the race detector; make test-large runs it without.
func SkipUnderRace(t testing.TB) {
	t.Helper()
	if underRace {
		t.Skip("see make test-large")
	}
}

// UnderRace reports whether the race detector is on.
func UnderRace() bool { return underRace }

// Context returns a context with a generous timeout, for signals that must arrive.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Must returns a function that returns value, or fails the test if err is set: Must(f())(t). It returns a function because
// Go cannot pass two results together with a third argument.
func Must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// MustFail fails the test unless err has the class and disposition, and one line of text.
func MustFail(t testing.TB, err error, class events.Class, disposition events.Disposition) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s", class)
	}
	if events.ClassOf(err) != class || events.DispositionOf(err) != disposition {
		t.Fatalf("got %s, %s (%v), want %s, %s", events.ClassOf(err), events.DispositionOf(err), err, class, disposition)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has more than one line: %v", err)
	}
}
