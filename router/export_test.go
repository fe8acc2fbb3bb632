package router

import (
	"testing"
	"time"
)

// SetAlone sets how long a message waits until it is alone, and then runs alone, until the test ends.
func SetAlone(t *testing.T, wait, runs time.Duration) {
	oldWait, oldFor := aloneWait, aloneFor
	aloneWait, aloneFor = wait, runs
	t.Cleanup(func() { aloneWait, aloneFor = oldWait, oldFor })
}
