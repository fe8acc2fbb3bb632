// Package testenv has helpers for all tests. It also chooses how much of a test suite runs: the everyday form, or
// with LOCKSTEP_TEST=all also the long forms, such as storms, failovers and many processes.
package testenv

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

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

// Refused returns the troubles of a repository whose remote refuses the credentials of apps, each as
// "{credential}:{app}".
func Refused(credentials ...string) string {
	var all []string
	for _, one := range credentials {
		all = append(all, fmt.Sprintf(`"credential:%s":{"scope":"credential"}`, one))
	}
	return `{"all":{` + strings.Join(all, ",") + `}}`
}

// Seed returns LOCKSTEP_SEED, or a random number, and logs it: setting it repeats the random choices of a test that
// failed.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("LOCKSTEP_SEED"); text != "" {
		seed = Must(strconv.ParseUint(text, 10, 64))(t)
	}
	t.Logf("LOCKSTEP_SEED=%d", seed)
	return seed
}

// Form returns everyday, or long if the long forms are asked for: a number of rounds, a duration. With the race detector,
// which is ten times as slow and finds the same in fewer rounds, it returns everyday.
func Form[T any](everyday, long T) T {
	if All() && !underRace {
		return long
	}
	return everyday
}

// Soaking reports whether LOCKSTEP_SOAK asks for the soak tests, which have the machine to themselves.
func Soaking() bool { return os.Getenv("LOCKSTEP_SOAK") != "" }

// Soak returns usual, or soak in the soak tests.
func Soak[T any](usual, soak T) T {
	if Soaking() {
		return soak
	}
	return usual
}

// SoakTime is Soak for how long a load lasts. The race detector finds the same in usual. LOCKSTEP_SOAK_TIME replaces both.
func SoakTime(t testing.TB, usual, soak time.Duration) time.Duration {
	t.Helper()
	if text := os.Getenv("LOCKSTEP_SOAK_TIME"); text != "" {
		return Must(time.ParseDuration(text))(t)
	}
	if underRace {
		return usual
	}
	return Soak(usual, soak)
}

// Parallel lets n tests run at a time, for a package whose tests mostly wait. TestMain calls it before it
// runs the tests; go test -parallel overrides it.
func Parallel(n int) {
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err)
	}
}

// Main runs the tests of a package and exits, with code 1 if goroutines are left. It waits longer than goleak does
// for those that are about to end, as a busy machine needs.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		err := goleak.Find(options...)
		for deadline := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(deadline); {
			err = goleak.Find(options...)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// SkipUnderRace skips a test that the race detector makes too slow; make test-large runs it without.
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

// Must returns a function that returns value, or fails the test if err is set: Must(f())(t). It returns a function
// because Go cannot pass two results together with a third argument.
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

// Receive receives from a channel, or fails the test after a minute.
func Receive[T any](t testing.TB, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("no %s after a minute", what)
		panic("unreachable")
	}
}
