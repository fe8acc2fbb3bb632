package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

const manyAppsRepo = "acme/shared"

// apps is a repository that many apps watch, and a service.
type apps struct {
	*service
	git   *gitserver.Server
	names []string
	last  string // ID of the last result read
}

func newApps(t *testing.T) *apps {
	t.Helper()
	git := proctest.StartGit(t)
	proctest.Must(git.Create(t.Context(), manyAppsRepo, map[string]string{"README": "0\n"}))(t)
	return &apps{service: startServiceOn(t, redistest.StartReal(t), hookEnv()), git: git, last: "0"}
}

// name returns the name of one more app.
func (a *apps) name() string {
	a.names = append(a.names, fmt.Sprintf("app-%04d", len(a.names)))
	return a.names[len(a.names)-1]
}

// add adds n apps, one by one, each with a watch of the default branch.
func (a *apps) add(n int) {
	a.Helper()
	for range n {
		a.watch(map[string]any{"app": a.name(), "url": a.git.URL(manyAppsRepo)})
	}
}

// addTogether adds n apps in one step.
func (a *apps) addTogether(n int) {
	a.Helper()
	var watches strings.Builder
	watches.WriteString("watches:\n")
	for range n {
		fmt.Fprintf(&watches, "- {app: %s, url: %s}\n", a.name(), a.git.URL(manyAppsRepo))
	}
	file := filepath.Join(a.TempDir(), "watches.yaml")
	proctest.Must(0, os.WriteFile(file, []byte(watches.String()), 0o600))(a.T)
	if _, stderr, code := proctest.RunLockstep(a.T, nil, "watch", "import", file, "--redis", a.redis.URL()); code != 0 {
		a.Fatalf("watch import: exit code %d: %s", code, stderr)
	}
}

// push pushes a commit and delivers its webhook.
func (a *apps) push() {
	a.Helper()
	commit := proctest.Must(a.git.Commit(a.Context(), manyAppsRepo, gitserver.Main, gitserver.Edit{Write: map[string]string{"README": fmt.Sprint(time.Now().UnixNano())}}))(a.T)
	a.deliver(commit, a.git.URL(manyAppsRepo), commit)
}

// await waits until each app has received a result of the repository's commit, and returns the number of results that it read.
func (a *apps) await() (read int) {
	a.Helper()
	head, missing := a.git.Head(manyAppsRepo, "refs/heads/main"), map[string]bool{}
	for _, app := range a.names {
		missing[app] = true
	}
	for len(missing) > 0 {
		found, err := a.client.XRead(a.Context(), &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Results(), a.last}, Count: 1000, Block: time.Minute}).Result()
		if err != nil {
			a.Fatalf("%d of %d apps have received nothing: %v", len(missing), len(a.names), err)
		}
		for _, entry := range found[0].Messages {
			a.last = entry.ID
			r := proctest.DecodeResult(a.T, entry)
			switch {
			case r.Type == events.ResultFailed:
				a.Fatalf("%s failed: %s", r.App, r.Error)
			case r.Type == events.ResultSynced && r.After == head:
				delete(missing, r.App)
			}
			read++
		}
	}
	return read
}

// settle waits until no change is left.
func (a *apps) settle() {
	a.Helper()
	proctest.Eventually(a.T, func() bool {
		groups := proctest.Must(a.client.XInfoGroups(a.Context(), events.DefaultNamespace.Changes()).Result())(a.T)
		return len(groups) == 1 && groups[0].Pending == 0 && groups[0].Lag == 0
	}, "no change is left")
}

// changes returns the number of changes that were ever added.
func (a *apps) changes() int64 {
	a.Helper()
	return proctest.Must(a.client.XInfoStream(a.Context(), events.DefaultNamespace.Changes()).Result())(a.T).EntriesAdded
}

// cost is what Redis has done: commands, also those of scripts, and bytes sent.
type cost struct{ commands, bytes float64 }

func (a *apps) cost() (c cost) {
	a.Helper()
	info := proctest.Must(a.client.InfoMap(a.Context(), "stats", "commandstats").Result())(a.T)
	for _, command := range info["Commandstats"] {
		_, calls, _ := strings.Cut(command, "calls=")
		calls, _, _ = strings.Cut(calls, ",")
		c.commands += proctest.Must(strconv.ParseFloat(calls, 64))(a.T)
	}
	c.bytes = proctest.Must(strconv.ParseFloat(info["Stats"]["total_net_output_bytes"], 64))(a.T)
	return c
}

// perApp returns the cost of one app in some pushes.
func (a *apps) perApp(pushes int) cost {
	a.Helper()
	before := a.cost()
	for range pushes {
		a.push()
		a.await()
		a.settle()
	}
	after, n := a.cost(), float64(pushes*len(a.names))
	c := cost{(after.commands - before.commands) / n, (after.bytes - before.bytes) / n}
	a.Logf("a push to %d apps, per app: %.0f commands, %.0f bytes sent by Redis", len(a.names), c.commands, c.bytes)
	return c
}

func TestAddedAppsCostChangesForThemselvesOnly(t *testing.T) {
	t.Parallel()
	for _, n := range testenv.Form([]int{50}, []int{25, 50, 100, 200}) {
		a := newApps(t)
		start := time.Now()
		a.add(n)
		results := a.await()
		took := time.Since(start)
		a.settle()
		changes := a.changes()
		t.Logf("%d apps added: %d changes, %d results, %.1f s until each has its tree", n, changes, results, took.Seconds())
		if changes > int64(4*n) {
			t.Errorf("%d apps added: %d changes, want at most 4 for each", n, changes)
		}
	}
}

func TestCostOfAPushPerAppDoesNotDependOnTheNumberOfApps(t *testing.T) {
	testenv.SkipUnderRace(t) // a delivery to 900 apps takes longer than a webhook may
	t.Parallel()
	var few cost
	for i, n := range testenv.Form([]int{20, 200}, []int{20, 160, 900}) {
		a := newApps(t)
		a.addTogether(n)
		a.await()
		a.settle()
		c := a.perApp(max(1, 400/n))
		if i == 0 {
			few = c
			continue
		}
		// In how many batches the changes settle varies; a cost that grows with the apps would be 8 and 45 times that of 20.
		if c.commands > 2*few.commands || c.bytes > 2*few.bytes {
			t.Errorf("with %d apps, Redis runs %.0f commands and sends %.0f bytes for each; with fewer %.0f and %.0f", n, c.commands, c.bytes, few.commands, few.bytes)
		}
	}
}
