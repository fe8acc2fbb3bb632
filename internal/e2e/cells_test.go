package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// twoCells adds two cells to the directory, whose keys are on different masters of the cluster, and returns them. The directory is on the
// third one.
func twoCells(t *testing.T, client redis.UniversalClient) (*cells.Directory, [2]cells.Cell) {
	t.Helper()
	directory := proctest.Must(cells.OpenOrNew(t.Context(), client, "lockstep:{dir}:"))(t)
	var two [2]cells.Cell
	for i, name := range []string{"eu-1", "eu-2"} {
		two[i] = proctest.Must(directory.Add(t.Context(), name, cellPrefixes[i], 0))(t)
	}
	proctest.Must(0, directory.Settle(t.Context(), directory.Epoch()))(t)
	return directory, two
}

// cellPrefixes are on different masters of redistest.StartCluster, and so is {dir}: slots 3,000, 9,000 and 15,000 or so. A test checks it.
var cellPrefixes = [2]events.Namespace{"lockstep:{eu-1}:", "lockstep:{eu-2}:"}

// masters returns the index of the node that has each key.
func masters(t *testing.T, client redis.UniversalClient, keys ...string) []int64 {
	t.Helper()
	nodes := make([]int64, len(keys))
	for i, key := range keys {
		nodes[i] = proctest.Must(client.ClusterKeySlot(t.Context(), key).Result())(t) * 3 / 16384
	}
	return nodes
}

// TestRawEntriesAreForwardedOnceDespiteKills adds entries of both cells to the stream of one, and kills its workers again and again while
// they forward.
func TestRawEntriesAreForwardedOnceDespiteKills(t *testing.T) {
	t.Parallel()
	ctx, git, cluster := t.Context(), proctest.StartGit(t), redistest.StartCluster(t)
	client := redisAt(t, cluster.URL())
	directory, two := twoCells(t, client)
	repos := testenv.Form(10, 40)
	const perRepo = 10
	elsewhere := 0
	for i := range repos {
		name := fmt.Sprintf("acme/repo-%d", i)
		proctest.Must(git.Create(ctx, name, map[string]string{"README": name}))(t)
		if directory.Place(proctest.Must(events.ParseRepoPath(name))(t)).Name == "eu-2" {
			elsewhere += perRepo
		}
	}
	ids := map[string]bool{}
	for n := range repos * perRepo {
		name := fmt.Sprintf("acme/repo-%d", n%repos)
		values := []string{"repo", name, "url", git.URL(name), "ref", "refs/heads/main"}
		ids[proctest.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: two[0].Prefix.Changes(), Values: values}).Result())(t)] = true
	}
	serve := func(cell, root string) *proctest.Process {
		return proctest.Start(t, "serve", "--redis", cluster.URL(), "--cell", cell, "--root", root, "--lease", "1s", "--lock-wait", "5s", "--log-level", "warn")
	}
	root := t.TempDir()
	for range testenv.Form(6, 25) {
		p := serve("eu-1", root)
		more := 1 + rand.Int64N(4)
		before := client.XLen(ctx, two[1].Prefix.Changes()).Val()
		proctest.Eventually(t, func() bool {
			n := client.XLen(ctx, two[1].Prefix.Changes()).Val()
			return n >= before+more || n == int64(elsewhere)
		}, "changes are forwarded")
		p.Kill()
	}
	serve("eu-1", root)
	serve("eu-2", t.TempDir())
	settled := map[string]int{}
	proctest.Eventually(t, func() bool {
		clear(settled)
		for _, cell := range two {
			for _, entry := range client.XRange(ctx, cell.Prefix.Results(), "-", "+").Val() {
				for _, id := range proctest.DecodeResult(t, entry).Deliveries {
					settled[id]++
				}
			}
		}
		return len(settled) >= len(ids)
	}, "all changes have results")
	for id, n := range settled {
		if n != 1 || !ids[id] {
			t.Errorf("change %s has %d results", id, n)
		}
	}
	if n := client.XLen(ctx, two[1].Prefix.Changes()).Val(); n != int64(elsewhere) {
		t.Errorf("%d changes in the other cell, want %d", n, elsewhere)
	}
}

// TestListsNameTheCellThatIsStopped stops the Redis of one cell, by killing it or by suspending it.
func TestListsNameTheCellThatIsStopped(t *testing.T) {
	t.Parallel()
	ctx, cluster := t.Context(), redistest.StartCluster(t)
	for _, node := range cluster.Nodes {
		proctest.Must(0, node.Client().ConfigSet(ctx, "cluster-require-full-coverage", "no").Err())(t)
	}
	client := redisAt(t, cluster.URL())
	twoCells(t, client)
	nodes := masters(t, client, "lockstep:{dir}:cells", string(cellPrefixes[0]), string(cellPrefixes[1]))
	if nodes[0] == nodes[1] || nodes[1] == nodes[2] || nodes[0] == nodes[2] {
		t.Fatalf("the directory and the cells are on the masters %v, want three", nodes)
	}
	git := proctest.StartGit(t)
	env := []string{"LOCKSTEP_REDIS=" + cluster.URL(), "LOCKSTEP_CELLS_PREFIX=lockstep:{dir}:"}
	for i := range 8 {
		name := fmt.Sprintf("acme/repo-%d", i)
		if out, errs, code := proctest.RunLockstep(t, env, "watch", "add", git.URL(name), "--app", "docs", "--no-check"); code != 0 {
			t.Fatalf("%s%s", out, errs)
		}
	}
	cluster.Nodes[nodes[2]].Stop()
	for _, args := range [][]string{{"status"}, {"repos", "ls"}, {"dead", "ls"}, {"watch", "ls"}} {
		began := time.Now()
		out, errs, code := proctest.RunLockstep(t, env, args...)
		took := time.Since(began)
		if code != 1 || !strings.Contains(errs, "no answer from cell eu-2") || strings.Contains(errs, "eu-1") {
			t.Errorf("lockstep %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errs)
		}
		if took > 2*time.Second {
			t.Errorf("lockstep %s took %v", strings.Join(args, " "), took)
		}
		t.Logf("lockstep %s: %v", strings.Join(args, " "), took)
		if args[0] == "watch" && !strings.Contains(out, "acme/repo-") {
			t.Errorf("no watches of the other cell:\n%s", out)
		}
	}
}
