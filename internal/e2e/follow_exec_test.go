package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/proctest"
)

// TestFollowerRunsACommandForEachTree lets the command fail, and kills the follower while it runs.
func TestFollowerRunsACommandForEachTree(t *testing.T) {
	t.Parallel()
	o := startOrigin(t, "acme/widgets")
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) { proctest.Must(0, os.WriteFile(path(name), []byte(text), 0o755))(t) }
	write("hook", "#!/bin/sh\ncd "+dir+"\necho $LOCKSTEP_NAME $(cat $LOCKSTEP_TREE/a) >>runs\ntest ! -e hang || exec sleep 1000\ntest -e ok || { echo no luck; exit 3; }\n")
	runs := func() []string {
		text, _ := os.ReadFile(path("runs"))
		return slices.Compact(strings.Split(strings.TrimSpace(string(text)), "\n"))
	}
	awaitRuns := func(want ...string) {
		t.Helper()
		proctest.Eventually(t, func() bool { return slices.Equal(runs(), want) }, "the runs are %q", want)
	}
	address := proctest.FreeAddress(t)
	f := o.follow("--exec", path("hook"), "--admin-listen", address)
	awaitMetric := func(line string) {
		t.Helper()
		proctest.Eventually(t, func() bool {
			resp, err := http.Get("http://" + address + "/metrics")
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			return strings.Contains(string(text), line+"\n")
		}, "the metrics have %s", line)
	}

	f.process.AwaitLog(`msg="command failed, will retry" name=acme/widgets`)
	f.process.AwaitLog("exit status 3: no luck")
	awaitMetric("lockstep_follower_behind 1")
	awaitMetric(`lockstep_notify_total{result="failed"} 1`)
	write("ok", "")
	awaitMetric("lockstep_follower_behind 0")
	awaitRuns("acme/widgets first")

	write("hang", "")
	o.push("acme/widgets", "second")
	awaitRuns("acme/widgets first", "acme/widgets second")
	f.process.Kill()
	proctest.Must(0, os.Remove(path("hang")))(t)
	write("runs", "")
	f.start() // runs again what was killed
	awaitRuns("acme/widgets second")
	awaitMetric("lockstep_follower_behind 0")
	if code := f.process.Terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	write("runs", "")
	f.start() // and nothing that has succeeded
	o.push("acme/widgets", "third")
	awaitRuns("acme/widgets third")
	if n := strings.Count(fmt.Sprint(runs()), "second"); n > 0 {
		t.Errorf("%d runs for a tree for which the command had succeeded", n)
	}
}
