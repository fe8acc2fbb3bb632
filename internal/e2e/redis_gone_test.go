package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/backup"
	"lockstep/internal/proctest"
	"lockstep/internal/schedule"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
)

// TestRedisIsGoneAndAnExportBringsItBack is the drill of docs/operations.md with an export.
func TestRedisIsGoneAndAnExportBringsItBack(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	o := newOutage(t)
	for n := range 20 {
		o.push(o.repos[n%len(o.repos)])
	}
	file := filepath.Join(t.TempDir(), "lockstep.export")
	if stdout, stderr, code := proctest.RunLockstep(t, nil, "export", file, "--redis", o.server.URL()); code != 0 { // under load
		t.Fatalf("export: exit code %d\n%s%s", code, stdout, stderr)
	}
	repeats := repeated(t, file)
	trees := o.lose()
	o.awaitListed(0, http.StatusUnauthorized)
	if stdout, stderr, code := proctest.RunLockstep(t, nil, "import", file, "--redis", o.server.URL()); code != 0 || !strings.Contains(stdout, "16 watches, 8 states, 1 tokens") {
		t.Fatalf("import: exit code %d\n%s%s", code, stdout, stderr)
	}
	begin := time.Now()
	o.awaitHeads()
	t.Logf("all repositories are at their heads %v after the import", time.Since(begin).Round(time.Millisecond))
	o.awaitApps()
	o.assertKept(trees)
	o.awaitListed(len(o.repos), http.StatusOK)
	for name, received := range map[string]map[string][]events.Result{"notified": o.notified.all(), "consumed": o.consumed.all()} {
		missing, overlaps := holes(received, repeats)
		if len(missing) > 0 {
			t.Errorf("%s: %s", name, strings.Join(missing, "\n"))
		}
		t.Logf("%s: %d results from an older commit than the last one", name, overlaps)
	}
}

// repeated returns for which app and repository an export repeats the last result, without before: a result of the repository was not
// acknowledged or posted when it was written.
func repeated(t *testing.T, file string) map[string]bool {
	t.Helper()
	document := proctest.Must(backup.Parse(proctest.Must(os.ReadFile(file))(t)))(t)
	found := map[string]bool{}
	for _, one := range document.Repos {
		for _, w := range one.Watches {
			if base, _, _ := state.RepoOf(one.State).Received(w.App, proctest.Must(events.ParseRef("main"))(t), "", "", ""); base == "" {
				found[w.App+" "+one.Repo.String()] = true
			}
		}
	}
	return found
}

// TestRedisIsGoneWithoutAnExport is the drill of docs/operations.md without an export: the volume knows repositories and remotes, not who
// watches them.
func TestRedisIsGoneWithoutAnExport(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	o := newOutage(t)
	trees := o.lose()
	var report schedule.Report
	proctest.Eventually(t, func() bool { // workers keep the leases of what they were syncing for a moment
		report = o.reconcile()
		return report.Busy == 0
	}, "no repository is busy")
	for _, found := range report.Findings {
		if found.Kind != schedule.UnwatchedClone || found.Asked != "" {
			t.Errorf("reconcile: %+v", found)
		}
	}
	if len(report.Findings) != len(o.repos) || report.Watched != 0 {
		t.Errorf("reconcile: %+v, want each repository as an unwatched clone", report)
	}
	var file strings.Builder
	file.WriteString("watches:\n")
	bindings := proctest.Must(filepath.Glob(filepath.Join(o.root, ".lockstep/repos/*/*/repo.json")))(t)
	for _, path := range bindings {
		var bound struct{ Repo, Remote string }
		proctest.Must(0, json.Unmarshal(proctest.Must(os.ReadFile(path))(t), &bound))(t)
		fmt.Fprintf(&file, "  - {app: docs, repo: %s, url: %q}\n", bound.Repo, bound.Remote)
	}
	watches := filepath.Join(t.TempDir(), "watches.yaml")
	proctest.Must(0, os.WriteFile(watches, []byte(file.String()), 0o600))(t)
	if stdout, stderr, code := proctest.RunLockstep(t, nil, "watch", "import", watches, "--redis", o.server.URL()); code != 0 {
		t.Fatalf("watch import: exit code %d\n%s%s", code, stdout, stderr)
	}
	o.awaitHeads()
	for _, repo := range o.repos {
		head := o.git.Head(repo, "refs/heads/main")
		proctest.Eventually(t, func() bool { return o.consumed.have("docs", repo) == head && len(o.consumed.since("docs", repo)) > 0 }, "docs has consumed the head of %s again", repo)
	}
	o.assertKept(trees)
	for _, repo := range o.repos {
		if first := o.consumed.since("docs", repo)[0]; first.Before != "" {
			t.Errorf("the first result of %s is from %s: nothing can know that", repo, first.Before)
		}
	}
	o.awaitListed(0, http.StatusUnauthorized)
}
