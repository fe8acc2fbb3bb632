package e2e

import (
	"context"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// TestCellsAreGoneAndAnExportBringsThemBack empties all masters of a cluster under running cells, and imports an export of all of them: each
// repository is in its cell again, and its results go on from those of the export.
func TestCellsAreGoneAndAnExportBringsThemBack(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	rig := startCells(t, "eu-1", "eu-2")
	one, two := rig.cells["eu-1"], rig.cells["eu-2"]
	all := []string{"--redis", rig.url, "--cell", cells.Every}
	tail := proctest.Start(t, append([]string{"tail", "--since", "1h"}, all...)...)
	for _, c := range []*cellUnderTest{one, two} {
		rig.startWorker(c)
	}
	first, second := rig.create(one, "first"), rig.create(two, "second")
	pinned := rig.create(one, "pinned")
	rig.startReader(one)
	rig.awaitGiven(one, pinned, rig.push(one, pinned, "moves"))
	rig.request(pinned, one, two)
	rig.awaitMoved(pinned, two)
	at := map[events.RepoPath]*cellUnderTest{first: one, second: two, pinned: two}
	commits := map[events.RepoPath]string{}
	for repo, c := range at {
		commits[repo] = rig.push(c, repo, "exported")
		rig.awaitGiven(c, repo, commits[repo])
		tail.AwaitLog(repo.String() + " refs/heads/main search")
	}

	file := filepath.Join(t.TempDir(), "lockstep.export")
	if stdout, stderr, code := proctest.RunLockstep(t, nil, append([]string{"export", file}, all...)...); code != 0 || !strings.Contains(stdout, "cells         2") {
		t.Fatalf("export: exit code %d\n%s%s", code, stdout, stderr)
	}
	cluster := rig.client.(*redis.ClusterClient)
	if err := cluster.ForEachMaster(t.Context(), func(ctx context.Context, master *redis.Client) error { return master.FlushAll(ctx).Err() }); err != nil {
		t.Fatal(err)
	}
	exported := maps.Clone(commits)
	for repo := range at {
		commits[repo] = proctest.Must(rig.git.Commit(t.Context(), repo.String(), gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "meanwhile"}}))(t)
	}
	if stdout, stderr, code := proctest.RunLockstep(t, nil, append([]string{"import", file}, all...)...); code != 0 || !strings.Contains(stdout, "3 watches, 3 states") {
		t.Fatalf("import: exit code %d\n%s%s", code, stdout, stderr)
	}
	for repo, c := range at {
		rig.awaitGiven(c, repo, commits[repo])
		rig.assertTree(c, repo, "meanwhile")
		if results := rig.results(c, repo); len(results) != 1 || results[0].Before != exported[repo] || results[0].After != commits[repo] {
			t.Errorf("%s in %s: results %+v, want one from the commit of the export", repo, c.name, results)
		}
		tail.AwaitLog(commits[repo][:12])
	}
	if err := rig.directory.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for repo, c := range at {
		if placed := rig.directory.Place(repo).Name; placed != c.name || rig.directory.PinnedTo(repo, c.name) != (repo == pinned) {
			t.Errorf("%s is placed in %s, want %s", repo, placed, c.name)
		}
	}
}
