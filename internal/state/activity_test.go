package state_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
)

func changeFor(t *testing.T, id, url string) events.Change {
	t.Helper()
	change, err := events.NewChange(events.Change{ID: id, URL: url, App: "docs"})
	if err != nil {
		t.Fatal(err)
	}
	return change
}

// begin starts a job and returns how to report its progress and its end.
func begin(r *state.Reporter, change events.Change) (progress func(events.Progress), end func()) {
	r.Begin(&change, change, 1795223511284000)
	return func(p events.Progress) { r.Progress(&change, p) }, func() { r.End(&change) }
}

// startReporter starts the Reporter of a worker. It runs until stop is called or the test ends.
func startReporter(t *testing.T, client redis.Scripter, worker string) (r *state.Reporter, stop func()) {
	t.Helper()
	r = state.NewReporter(client, events.DefaultNamespace, worker, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return r, stop
}

// awaitActivities waits until there are n activities for which ok, if not nil, returns true.
func awaitActivities(t *testing.T, store *state.Store, n int, ok func([]state.Activity) bool) []state.Activity {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		all, err := store.Activities(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == n && (ok == nil || ok(all)) {
			return all
		}
	}
	t.Fatalf("timed out waiting for %d activities", n)
	return nil
}

func TestActivitiesOfAllWorkers(t *testing.T) {
	t.Parallel()
	ctx, server := context.Background(), redistest.Start(t)
	client := server.Client()
	store := state.NewStore(client, events.DefaultNamespace)
	if all, err := store.Activities(ctx); err != nil || len(all) != 0 {
		t.Fatalf("at first %v, %v", all, err)
	}
	one, stopOne := startReporter(t, server.Client(), "w1")
	two, _ := startReporter(t, server.Client(), "w2\n")
	progress, _ := begin(one, changeFor(t, "c1", "https://example.com/Acme/Widgets.git"))
	progress(events.Progress{Phase: events.PhaseFetch, Done: 10, Unit: "bytes"})
	_, endTwo := begin(two, changeFor(t, "c2", "https://example.com/acme/gadgets.git"))

	all := awaitActivities(t, store, 2, nil)
	slices.SortFunc(all, func(a, b state.Activity) int { return strings.Compare(a.Worker, b.Worker) }) // both have the same start time
	a := all[0]
	if a.Repo != "Acme/Widgets" || a.Job != "c1" || a.Worker != "w1" || a.Operation != "sync" || a.App != "docs" || a.Fence != 1795223511284000 {
		t.Errorf("activity %+v", a)
	}
	if a.Progress != (events.Progress{Phase: events.PhaseFetch, Done: 10, Unit: "bytes"}) {
		t.Errorf("progress %+v", a.Progress)
	}
	if elapsed := a.At.Sub(a.Since); elapsed < 500*time.Millisecond || elapsed > time.Minute {
		t.Errorf("elapsed time %v, want about half a second", elapsed)
	}
	if all[1].Worker != "w2\n" || all[1].Phase != "" {
		t.Errorf("activity %+v", all[1])
	}
	document, err := json.Marshal(a)
	if err != nil || !strings.Contains(string(document), `"phase":"fetch","done":10,"unit":"bytes"`) {
		t.Errorf("%s, %v", document, err)
	}

	progress(events.Progress{Phase: events.PhaseBuild, Done: 1, Total: 2, Unit: "files"})
	awaitActivities(t, store, 2, func(all []state.Activity) bool {
		return slices.ContainsFunc(all, func(a state.Activity) bool { return a.Phase == events.PhaseBuild && a.Total == 2 })
	})
	endTwo()
	awaitActivities(t, store, 1, nil)
	stopOne() // with a job in progress, as after a drain timeout
	if all, err := store.Activities(ctx); err != nil || len(all) != 0 {
		t.Errorf("%v, %v: want none after the worker has stopped", all, err)
	}
	if n := client.Exists(ctx, events.DefaultNamespace.Working()).Val(); n != 0 {
		t.Error("the reports are not deleted")
	}
}

func TestOldReportsAreIgnoredAndDeleted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := redistest.Start(t).Client()
	store, key := state.NewStore(client, events.DefaultNamespace), events.DefaultNamespace.Working()
	now, err := client.Time(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	report := func(ago time.Duration) string {
		return fmt.Sprintf(`%d [{"repo":"acme/widgets","job":"c1","operation":"sync","fence":7,"took_ms":1000}]`, now.Add(-ago).UnixMilli())
	}
	client.HSet(ctx, key, "alive", report(0), "old", report(30*time.Second), "expired", report(2*time.Minute), "ahead", report(-time.Hour),
		"no time", "[]", "no JSON", fmt.Sprintf("%d [", now.UnixMilli()), "nothing", "")
	all, err := store.Activities(ctx)
	if err != nil || len(all) != 1 || all[0].Worker != "alive" {
		t.Errorf("%+v, %v; want only that of the live worker", all, err)
	}
	if since := now.Add(-time.Second); all[0].Since.UnixMilli() != since.UnixMilli() {
		t.Errorf("since %v, want %v", all[0].Since, since)
	}
	if fields := client.HKeys(ctx, key).Val(); len(fields) != 3 {
		t.Errorf("remaining reports: %q, want those of the last minute", fields)
	}
	client.Set(ctx, key, "of another type", 0)
	if _, err := store.Activities(ctx); err == nil {
		t.Error("no error for a key that is not a hash")
	}
}

// counted is a Scripter that counts its calls.
type counted struct {
	redis.Scripter
	calls, deletes atomic.Int64
}

func (c *counted) EvalSha(ctx context.Context, _ string, _ []string, args ...any) *redis.Cmd {
	c.calls.Add(1)
	if args[0] == "delete" {
		c.deletes.Add(1)
	}
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(redis.Nil)
	return cmd
}

func TestReporterWritesRarely(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var fake counted
		r, stop := startReporter(t, &fake, "w1")
		defer stop()
		job := changeFor(t, "c1", "https://example.com/acme/widgets.git")
		for range 100 { // one after the other, 40 s in all
			_, end := begin(r, job)
			time.Sleep(400 * time.Millisecond)
			end()
		}
		time.Sleep(time.Hour)
		if n := fake.calls.Load(); n != 0 {
			t.Fatalf("%d calls for short jobs and without jobs, want none", n)
		}
		progress, end := begin(r, job)
		for i := range 10_000 { // in 10 s
			progress(events.Progress{Phase: events.PhaseFetch, Done: int64(i), Unit: "bytes"})
			time.Sleep(time.Millisecond)
		}
		if n := fake.calls.Load(); n < 15 || n > 20 {
			t.Errorf("%d calls in 10 s of progress, want two per second", n)
		}
		synctest.Wait()
		fake.calls.Store(0)
		time.Sleep(10 * time.Second)
		if n := fake.calls.Load(); n < 4 || n > 6 {
			t.Errorf("%d calls in 10 s without progress, want a heartbeat every 2 s", n)
		}
		time.Sleep(10 * time.Millisecond) // let a simultaneous update finish
		synctest.Wait()
		fake.calls.Store(0)
		end()
		time.Sleep(time.Hour)
		if n, deletes := fake.calls.Load(), fake.deletes.Load(); n != 1 || deletes != 1 {
			t.Errorf("%d calls in the hour after the job, %d of them deletes; want one delete", n, deletes)
		}
	})
}

// TestWritesDeleteExpiredReports has the reports of crashed workers beside a live one, and lists none of them.
func TestWritesDeleteExpiredReports(t *testing.T) {
	t.Parallel()
	client, key := redistest.Start(t).Client(), events.DefaultNamespace.Working()
	client.HSet(t.Context(), key, "dead", "1795223511284 []", "dead, too", "1795223511284 []")
	r, _ := startReporter(t, client, "alive")
	progress, end := begin(r, changeFor(t, "c1", "https://example.com/acme/widgets.git"))
	defer end()
	for done, deadline := int64(1), time.Now().Add(time.Minute); client.HLen(t.Context(), key).Val() != 1 || !client.HExists(t.Context(), key, "alive").Val(); done++ {
		if time.Now().After(deadline) {
			t.Fatalf("remaining reports: %v", client.HKeys(t.Context(), key).Val())
		}
		progress(events.Progress{Phase: events.PhaseFetch, Done: done, Unit: "bytes"})
		time.Sleep(10 * time.Millisecond)
	}
}

func TestReportIsLimitedToTheLongestJobs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := state.NewStore(server.Client(), events.DefaultNamespace)
	r, _ := startReporter(t, server.Client(), "w1")
	for i := range 150 {
		_, end := begin(r, changeFor(t, fmt.Sprintf("c%d", i), fmt.Sprintf("https://example.com/acme/r%d.git", i)))
		defer end()
	}
	awaitActivities(t, store, 100, nil)
}
