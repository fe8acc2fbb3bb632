package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// hidden has alterations that a sync does not notice.
var hidden = []alteration{
	{"same size and time", func(_ *alteredWorld, path string) error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		return errors.Join(overwrite(path, slices.Repeat([]byte{'!'}, int(info.Size()))), os.Chtimes(path, info.ModTime(), info.ModTime()))
	}},
	{"added", func(_ *alteredWorld, path string) error { return os.WriteFile(path+".added", []byte("added"), 0o600) }},
	{"deleted", func(_ *alteredWorld, path string) error { return os.Remove(path) }},
}

// TestPatrolReplacesAlteredTrees alters published trees. The next patrol has each replaced, as a result for each app, the log and a
// metric say. No later tree has any of it.
func TestPatrolReplacesAlteredTrees(t *testing.T) {
	t.Parallel()
	for name, apps := range map[string][]string{"requested by hand": nil, "watched by two apps": {"docs", "search"}} {
		t.Run(name, func(t *testing.T) {
			rounds := hidden[:1]
			if len(apps) > 0 {
				testenv.Long(t)
				rounds = hidden
			}
			t.Parallel()
			a := newAlteredWorld(t, "--patrol-every", "1s", "--listen", "127.0.0.1:0", "--poll-every", "0s", "--reconcile-every", "0s")
			for _, app := range apps {
				_, stderr, code := proctest.RunLockstep(t, nil, "watch", "add", a.git.URL(alteredRepo), "--redis", a.redis, "--repo", alteredRepo, "--app", app)
				if code != term.ExitDone {
					t.Fatalf("watch: exit code %d: %s", code, stderr)
				}
			}
			proctest.Eventually(t, func() bool { return len(givenTo(a)) == len(apps)+1 }, "each app has its first result")
			for _, with := range rounds {
				tree := proctest.Must(filepath.EvalSymlinks(a.tree))(t)
				a.last = with.name
				commit := strings.TrimSpace(proctest.Must(gitserver.Git(t.Context(), tree, "", "rev-parse", "HEAD"))(t))
				seen := len(a.results())
				proctest.Must(0, with.alter(a, filepath.Join(tree, alteredPath(7))))(t)
				told := apps
				if len(told) == 0 {
					told = []string{""}
				}
				proctest.Eventually(t, func() bool { return fullResults(a.results()[seen:], commit, told) }, "%s: a result of %s for %v", with.name, commit, told)
				if now := proctest.Must(filepath.EvalSymlinks(a.tree))(t); now == tree {
					t.Errorf("%s: the tree is still published", with.name)
				}
				for _, what := range differences(t, a.tree, a.clone) {
					t.Errorf("%s: %s", with.name, what)
				}
				for range 2 { // the first may change a tree that was prepared before
					a.push()
				}
			}
			a.service.AwaitLog("published tree was altered, will be replaced")
			proctest.Eventually(t, func() bool {
				return samplesOf(t, a.service.ListenAddress("listening")).sum("lockstep_patrol_altered_total") >= 1
			}, "the metric counts it")
		})
	}
}

// results returns all results so far.
func (a *alteredWorld) results() (results []events.Result) {
	a.t.Helper()
	for _, entry := range proctest.Must(a.server.Client().XRange(a.t.Context(), events.DefaultNamespace.Results(), "-", "+").Result())(a.t) {
		results = append(results, proctest.DecodeResult(a.t, entry))
	}
	return results
}

func givenTo(a *alteredWorld) map[string]bool {
	given := map[string]bool{}
	for _, result := range a.results() {
		if result.Type == events.ResultSynced {
			given[result.App] = true
		}
	}
	return given
}

// fullResults reports whether each app has a result that lists all 60 files of a replaced tree. Apps have not received the last pushes.
func fullResults(results []events.Result, commit string, apps []string) bool {
	for _, app := range apps {
		if !slices.ContainsFunc(results, func(r events.Result) bool {
			return r.Type == events.ResultSynced && r.App == app && r.Full && (app != "" || r.Before == commit) && r.After == commit && len(r.Files) == 60
		}) {
			return false
		}
	}
	return true
}

// TestPatrolBesideConstantPushes pushes as fast as the service publishes, while replaced trees are deleted at once and patrols compare one
// tree after the other. Each push is published, and no patrol finds anything.
func TestPatrolBesideConstantPushes(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	t.Parallel()
	a := newAlteredWorld(t, "--patrol-every", "1s", "--tree-grace", "0s", "--tree-keep", "0s", "--listen", "127.0.0.1:0", "--log-level", "debug",
		"--patrol-rate", fmt.Sprint(256<<10)) // a comparison takes a second, so that trees are replaced and deleted meanwhile
	for range testenv.Soak(15, 1000) {
		a.push()
	}
	a.service.AwaitLog("trees compared")
	for _, result := range a.results() {
		if result.Type != events.ResultSynced || result.Full {
			t.Errorf("unexpected result %+v", result)
		}
	}
	if n := samplesOf(t, a.service.ListenAddress("listening")).sum("lockstep_patrol_altered_total"); n != 0 {
		t.Errorf("patrols have found %v altered files", n)
	}
	proctest.AssertIdle(t, a.server.Client())
}
