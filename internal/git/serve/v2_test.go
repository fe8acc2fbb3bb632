package serve

import (
	"strings"
	"testing"

	"lockstep/internal/testenv"
)

// TestPrefixes compares which refs match with the definition.
func TestPrefixes(t *testing.T) {
	names := []string{"HEAD", "refs/heads/a", "refs/heads/a/b", "refs/heads/aa", "refs/heads/b", "refs/tags/a", "refs/tags/a0"}
	for _, prefixes := range [][]string{
		nil, {""}, {"refs/heads/a"}, {"refs/tags/a0", "refs/heads/a/", "refs/heads/a/b", "HEAD"}, {"refs/heads/b", "", "refs"},
		{"refs/heads/a", "refs/heads/a", "refs/heads/a-", "refs/heads/a0", "refs/tags/b"}, {"refs/heads/aaa", "refs/heads/A"},
	} {
		lines := append([]string{"symrefs"}, prefixes...)
		for i := range prefixes {
			lines[i+1] = "ref-prefix " + prefixes[i]
		}
		list := testenv.Must(parseLsRefs(newPktReader(strings.NewReader(pkts(append(lines, "0000")...)))))(t)
		for _, name := range names {
			want := len(prefixes) == 0
			for _, prefix := range prefixes {
				want = want || strings.HasPrefix(name, prefix)
			}
			if got := list.matches(name); got != want {
				t.Errorf("%q of %q: %v", name, prefixes, got)
			}
		}
	}
}
