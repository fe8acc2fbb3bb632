package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
)

// history returns the number of commits that Git sees in a published tree of the node.
func (f *node) history(name string) string {
	f.Helper()
	out := proctest.Must(exec.Command("git", "-c", "safe.directory=*", "-C", f.root+"/"+name, "rev-list", "--count", "HEAD").Output())(f.T)
	return strings.TrimSpace(string(out))
}

// TestPushesBringTheHistoryOfTheOrigin copies all history of what arrives by the stream, also for a repository that had one commit until then.
func TestPushesBringTheHistoryOfTheOrigin(t *testing.T) {
	t.Parallel()
	o := startOrigin(t, "acme/widgets")
	f := o.follow("--depth", "full")
	f.process.AwaitLog("caught up with the reader")
	for n := range 2 {
		edit := gitserver.Edit{Write: map[string]string{"a": fmt.Sprint("full ", n)}}
		commit := proctest.Must(o.git.Commit(t.Context(), "acme/widgets", gitserver.Main, edit))(t)
		o.request(events.Change{URL: o.git.URL("acme/widgets"), After: commit, Depth: events.DepthFull})
		o.awaitSettled("acme/widgets", commit)
		f.await("acme/widgets", commit)
		count := proctest.Must(o.git.Git(t.Context(), "acme/widgets", "", "rev-list", "--count", commit))(t)
		if got, want := f.history("acme/widgets"), strings.TrimSpace(count); got != want {
			t.Errorf("%s commits, want all of the origin, %s", got, want)
		}
	}
}
