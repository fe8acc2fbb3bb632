package status

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/operate"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/term"
	"lockstep/locking"
)

// The deployment has more repositories than the search time covers.
func TestReadReportsIncompleteSearch(t *testing.T) {
	ctx := context.Background()
	redisServer := redistest.StartReal(t) // the embedded Redis scans everything at once
	client := redisServer.Client()
	const repos = 3000
	_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for n := range repos {
			repo := proctest.Must(events.ParseRepoPath(fmt.Sprintf("load/repo-%d", n)))(t)
			pipe.HSet(ctx, events.DefaultNamespace.Repo(repo), "repo", repo.String(), "trouble", fmt.Sprintf(`{"all":{"repo":{"scope":"repo","failures":%d}}}`, n%2), "fence", 1)
		}
		return nil
	})
	proctest.Must(0, err)(t)
	locker := proctest.Must(locking.New(locking.Config{Redis: client, Prefix: events.DefaultNamespace.Locks(), Worker: "w1"}))(t)
	defer locker.Close(ctx)
	cfg := config.Config{Redis: redisServer.URL(), Prefix: string(events.DefaultNamespace)}
	var leases leaseStatus
	err = locker.Do(ctx, locking.Request{Key: "load/repo-7", Job: "c1", Operation: "sync"}, func(context.Context, *locking.Lease) error {
		activities := []state.Activity{{Repo: "load/repo-7"}, {Repo: "load/repo-8"}, {Repo: ".."}}
		leases, err = readLeases(ctx, client, events.DefaultNamespace, activities, time.Nanosecond)
		return err
	})
	proctest.Must(0, err)(t)
	if leases.Complete || leases.Held != 1 {
		t.Errorf("leases %+v, want the one of the activity, incomplete", leases)
	}
	proctest.Must(client.HSet(ctx, events.DefaultNamespace.Repo(proctest.Must(events.ParseRepoPath("zz/last"))(t)), "repo", "zz/last",
		"trouble", fmt.Sprintf(`{"repo":"zz/last","all":{"c":{"class":"auth","operation":"sync","job":"1","at":%q}}}`, time.Now().UTC().Format(time.RFC3339))).Result())(t)
	proctest.Must(client.HSet(ctx, events.DefaultNamespace.Failing(), "zz/last", time.Now().UnixMilli()).Result())(t)
	status := proctest.Must(read(ctx, client, cfg, nil, time.Nanosecond))(t)
	if !slices.Contains(status.Needs, operate.Concern{Text: "auth: 1 repository, zz/last", See: operate.LookRepos}) {
		t.Errorf("needs %+v, want the failing repository, which the search has not found", status.Needs)
	}
	if got := status.Repos; got.Complete || got.Looked == 0 || got.Looked >= repos || got.Failing == 0 || len(got.Worst) != maxListed {
		t.Errorf("repositories %+v, want some", got)
	}
	var screen strings.Builder
	status.Table(&screen)
	for _, want := range []string{"search for missing files incomplete after", "at least 0 held (search incomplete)", "more; see -o json"} {
		if !strings.Contains(screen.String(), want) {
			t.Errorf("no %q in\n%s", want, screen.String())
		}
	}
	status = proctest.Must(read(ctx, client, cfg, nil, time.Minute))(t)
	if got := status.Repos; !got.Complete || got.Looked != repos+1 || got.Failing != repos/2+1 || !status.Leases.Complete {
		t.Errorf("with enough time: %+v, %+v", got, status.Leases)
	}
}

// TestTableFitsScreen formats a service with something in each section.
func TestTableFitsScreen(t *testing.T) {
	now := time.Now()
	since := now.Add(-90 * time.Second)
	s := Service{
		Redis: "redis://redis.example.com:6379", Prefix: "lockstep:{0}:", Changes: 1204, Unread: 3, Pending: 12, Parked: 4, Late: 1, Workers: 4, Away: []operate.Worker{{Name: "w9", State: operate.WorkerUnheard}}, Results: 5000, Dead: 3, OldestMS: 8200,
		Settled: rate{PerSecond: 12.3, Results: 100, OverMS: 8100},
		Groups: []operate.Group{
			{Stream: "lockstep:{0}:changes", Group: "workers", Lag: 3, Pending: 12, Late: 1, Consumers: 4, Live: 4, OldestMS: 8200},
			{Stream: "lockstep:{0}:results", Group: "indexer", Lag: -1, Pending: 2, Consumers: 1, OldestMS: 1200},
			{Stream: "lockstep:{0}:results", Group: "notify", Consumers: 1},
		},
		Activities: []state.Activity{
			{Repo: "acme/widgets", Worker: "w1", Operation: "sync", Since: since, At: now, Progress: events.Progress{Phase: events.PhaseFetch, Done: 12 << 20, Total: 40 << 20, Unit: "bytes"}},
			{Repo: "acme/gadgets", Worker: "w2", Operation: "sync", Since: since, At: now, Progress: events.Progress{Phase: events.PhaseBuild, Done: 10, Unit: "files"}},
		},
		Leases: leaseStatus{Complete: true, Held: 2, Contended: []operate.Lease{{
			Repo: "acme/widgets", Held: true, Since: &since, Holder: &operate.Party{Worker: "w1", Job: "c1", Operation: "sync"}, Waiters: make([]operate.Party, 2),
		}}},
		Repos:       failureStatus{Complete: true, Looked: 840},
		DeadReasons: map[string]int{"attempts used up": 2, "malformed": 1}, Notifications: 12, FailingBoxes: 7, FailingApps: []string{"ci", "docs", "scan", "search"},
		Watched: 800, Volume: &volumeStatus{ID: "L2PBKDNHBOIV6LKR2QXJB4PNWE", Root: "/srv/repos", Free: 12 << 30, Size: 40 << 30},
		now: now,
	}
	s.judge()
	var rows strings.Builder
	s.Table(&rows)
	screen := term.Align(rows.String())
	lines := strings.Split(strings.TrimSuffix(screen, "\n"), "\n")
	if len(lines) > 24 {
		t.Errorf("%d lines, want 24:\n%s", len(lines), screen)
	}
	for _, line := range lines {
		if n := len([]rune(line)); n > 80 {
			t.Errorf("%d columns, want 80: %s", n, line)
		}
	}
	for _, want := range []string{
		"health   attention: 800 repositories are watched, none fails", "needs    3 dead letters", "waits    notifications to ci, docs, scan and others about 7 repositories", "notify   12 waiting to be posted, 7 failing: ci, docs, scan and others", "dead     3 (attempts used up: 2, malformed: 1)", "results  5000 kept, 12.3/s: the last 100 in 8.1s",
		"sync acme/widgets  1m30s  fetch 12MiB of 40MiB  w1", "sync acme/gadgets  1m30s  build 10 files", "acme/widgets  2   1m30s     sync, job c1 on w1",
		"indexer  results  unknown  2 ",
		"changes  1204 kept, 3 unread, 12 pending, 4 parked, 1 overdue, oldest 8.2s", "workers  4, 1 not heard, at work on 2; leases: 2 held, 1 waited for",
	} {
		if !strings.Contains(screen, want) {
			t.Errorf("no %q in\n%s", want, screen)
		}
	}
}
