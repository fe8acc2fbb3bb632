package watch_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestPatternsOfOneAppArePolledOnce adds several watches of one app to a repository that others watch.
func TestPatternsOfOneAppArePolledOnce(t *testing.T) {
	b := newBench(t)
	for i := range 8 {
		b.put(of(t, fmt.Sprint("app", i), "acme/widgets", ""))
	}
	b.drain()
	b.put(of(t, "ci", "acme/widgets", "refs/heads/*"), of(t, "ci", "acme/widgets", "refs/tags/v*"), of(t, "ci", "acme/widgets", "main"), of(t, "docs", "acme/widgets", "main"))
	if got := b.drain(); len(got) != 2 || !strings.HasPrefix(got[0], "due for ci") || !strings.HasPrefix(got[1], "pushed") {
		t.Errorf("requested %q, want one poll for ci and one sync for docs", got)
	}
}
