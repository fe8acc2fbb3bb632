package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"lockstep/internal/proctest"
)

// history returns the number of commits that Git sees in a published tree of the node.
func (f *node) history(name string) string {
	f.Helper()
	out := proctest.Must(exec.Command("git", "-c", "safe.directory=*", "-C", f.root+"/"+name, "rev-list", "--count", "HEAD").Output())(f.T)
	return strings.TrimSpace(string(out))
}

// TestFollowerWithMoreDepthThanTheOrigin copies what the origin keeps, says how much that is, and gets more once the origin has it.
func TestFollowerWithMoreDepthThanTheOrigin(t *testing.T) {
	t.Parallel()
	o := startOrigin(t, "acme/widgets")
	var head string
	for _, content := range []string{"2", "3", "4"} {
		head = o.push("acme/widgets", content)
	}
	for name, depth := range map[string]string{"full": "full", "number": "50"} {
		t.Run(name, func(t *testing.T) {
			f := o.follow("--depth", depth)
			f.process.AwaitLog("caught up with the reader")
			f.process.AwaitLog(`msg="history is limited to what the origin keeps" repo=acme/widgets depth=1 wanted=` + depth)
			f.await("acme/widgets", head)
			if n := f.history("acme/widgets"); n != "1" {
				t.Errorf("%s commits, want those of the origin, 1", n)
			}
			head = o.push("acme/widgets", "more for "+name)
			f.await("acme/widgets", head)
			f.assertSame("acme/widgets")
		})
	}
}
