// Package testenv chooses how much of a test suite runs: the everyday form, or with LOCKSTEP_TEST=all also
// the long forms, such as storms, failovers and many processes.
package testenv

import (
	"flag"
	"os"
	"strconv"
	"testing"
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
