package e2e

import (
	"fmt"
	"os"
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
	"lockstep/internal/watch"
)

const manyAppsRepo = "acme/shared"

// apps is a repository that many apps watch, and a worker.
type apps struct {
	*testing.T
	git      *gitserver.Server
	redis    redis.UniversalClient
	worker   *proctest.Process
	registry *watch.Registry
	watches  []watch.Watch
	results  string // ID of the last result read
}

func newApps(t *testing.T) *apps {
	t.Helper()
	server := redistest.StartReal(t)
	a := &apps{T: t, git: proctest.StartGit(t), redis: server.Client(), results: "0"}
	a.registry = watch.NewRegistry(a.redis, events.DefaultNamespace)
	proctest.Must(a.git.Create(t.Context(), manyAppsRepo, map[string]string{"README": "0\n"}))(t)
	a.worker = proctest.Start(t, "serve", "--redis", server.URL(), "--root", t.TempDir(), "--log-level", "warn")
	return a
}

// add adds n apps, one by one, each with a watch of the default branch.
func (a *apps) add(n int) {
	a.Helper()
	for range n {
		w := proctest.Must(watch.New(watch.Watch{App: fmt.Sprintf("app-%04d", len(a.watches)), URL: a.git.URL(manyAppsRepo)}))(a.T)
		a.watches = append(a.watches, w)
		proctest.Must(a.registry.Put(a.Context(), w))(a.T)
	}
}

// addTogether adds n apps in one step.
func (a *apps) addTogether(n int) {
	a.Helper()
	for i := range n {
		a.watches = append(a.watches, proctest.Must(watch.New(watch.Watch{App: fmt.Sprintf("app-%04d", i), URL: a.git.URL(manyAppsRepo)}))(a.T))
	}
	proctest.Must(a.registry.Put(a.Context(), a.watches...))(a.T)
}

// push pushes a commit, and adds a change for each app in one step, as a webhook does.
func (a *apps) push() (commit string) {
	a.Helper()
	commit = proctest.Must(a.git.Commit(a.Context(), manyAppsRepo, gitserver.Main, gitserver.Edit{Write: map[string]string{"README": fmt.Sprint(time.Now().UnixNano())}}))(a.T)
	d := watch.Delivery{Source: "test", ID: commit}
	for i, w := range a.watches {
		d.Changes = append(d.Changes, proctest.Must(w.Change(fmt.Sprintf("%s/%d", commit, i), "/hooks/test", events.Ref{}, commit))(a.T))
	}
	if verdict, err := a.registry.Accept(a.Context(), d); err != nil || verdict != watch.Accepted {
		a.Fatal(verdict, err)
	}
	return commit
}

// await waits until each app has received a result of the repository's commit, and returns the number of results that it read.
func (a *apps) await() (read int) {
	a.Helper()
	head, missing := a.git.Head(manyAppsRepo, "refs/heads/main"), map[string]bool{}
	for _, w := range a.watches {
		missing[w.App] = true
	}
	for len(missing) > 0 {
		found, err := a.redis.XRead(a.Context(), &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Results(), a.results}, Count: 1000, Block: time.Minute}).Result()
		if err != nil {
			a.Fatalf("%d of %d apps have received nothing: %v", len(missing), len(a.watches), err)
		}
		for _, entry := range found[0].Messages {
			a.results = entry.ID
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
		groups := proctest.Must(a.redis.XInfoGroups(a.Context(), events.DefaultNamespace.Changes()).Result())(a.T)
		return len(groups) == 1 && groups[0].Pending == 0 && groups[0].Lag == 0
	}, "no change is left")
}

// changes returns the number of changes that were ever added.
func (a *apps) changes() int64 {
	a.Helper()
	return proctest.Must(a.redis.XInfoStream(a.Context(), events.DefaultNamespace.Changes()).Result())(a.T).EntriesAdded
}

// cost is what Redis and the worker have done.
type cost struct {
	commands, bytes float64       // of Redis: commands, also those of scripts, and bytes sent
	redis, worker   time.Duration // CPU time
}

func (a *apps) cost() (c cost) {
	a.Helper()
	for section, prefixes := range map[string][]string{"commandstats": {"cmdstat_"}, "stats": {"total_net_output_bytes:"}, "cpu": {"used_cpu_user:", "used_cpu_sys:"}} {
		for line := range strings.Lines(proctest.Must(a.redis.Info(a.Context(), section).Result())(a.T)) {
			for _, prefix := range prefixes {
				value, ok := strings.CutPrefix(strings.TrimSpace(line), prefix)
				if !ok {
					continue
				}
				if section == "commandstats" {
					_, value, _ = strings.Cut(value, "calls=")
					value, _, _ = strings.Cut(value, ",")
				}
				number := proctest.Must(strconv.ParseFloat(value, 64))(a.T)
				switch section {
				case "commandstats":
					c.commands += number
				case "stats":
					c.bytes += number
				default:
					c.redis += time.Duration(number * float64(time.Second))
				}
			}
		}
	}
	stat := string(proctest.Must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", a.worker.Cmd.Process.Pid)))(a.T))
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	for _, ticks := range fields[11:13] {
		c.worker += time.Duration(proctest.Must(strconv.Atoi(ticks))(a.T)) * 10 * time.Millisecond
	}
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
	after, n := a.cost(), float64(pushes*len(a.watches))
	c := cost{(after.commands - before.commands) / n, (after.bytes - before.bytes) / n, time.Duration(float64(after.redis-before.redis) / n), time.Duration(float64(after.worker-before.worker) / n)}
	a.Logf("a push to %d apps, per app: %.0f commands, %.0f bytes sent by Redis, CPU of Redis %v, of the worker %v", len(a.watches), c.commands, c.bytes, c.redis.Round(10*time.Microsecond), c.worker.Round(10*time.Microsecond))
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
		} else if c.commands > 1.2*few.commands || c.bytes > 1.2*few.bytes {
			t.Errorf("with %d apps, Redis runs %.0f commands and sends %.0f bytes for each; with fewer %.0f and %.0f", n, c.commands, c.bytes, few.commands, few.bytes)
		}
	}
}
