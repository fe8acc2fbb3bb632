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

func jobFor(t *testing.T, id, url string) events.Job {
	t.Helper()
	change, err := events.NewChange(events.Change{ID: id, URL: url, App: "docs"})
	if err != nil {
		t.Fatal(err)
	}
	return events.Job{Change: change, Entry: id, Fence: 1795223511284000}
}

// begin starts a job and returns how to report its progress and its end.
func begin(r *state.Reporter, job events.Job) (progress func(events.Progress), end func()) {
	r.Begin(&job)
	return func(p events.Progress) { r.Progress(&job, p) }, func() { r.End(&job) }
}

// reporting is a worker that says what it works on until the test stops it.
func reporting(t *testing.T, client redis.Scripter, worker string) (r *state.Reporter, stop func()) {
	t.Helper()
	r = state.NewReporter(client, events.DefaultNamespace, worker, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return r, stop
}

// awaitActivities polls until so many changes are worked on, and ok, if there is one, agrees.
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
	t.Fatalf("never %d activities", n)
	return nil
}

func TestEverybodySeesWhatWorkersWorkOn(t *testing.T) {
	ctx, server := context.Background(), redistest.Start(t)
	client := server.Client()
	store := state.NewStore(client, events.DefaultNamespace)
	if all, err := store.Activities(ctx); err != nil || len(all) != 0 {
		t.Fatalf("at first %v, %v", all, err)
	}
	one, stopOne := reporting(t, server.Client(), "w1")
	two, _ := reporting(t, server.Client(), "w2\n")
	progress, _ := begin(one, jobFor(t, "c1", "https://example.com/Acme/Widgets.git"))
	progress(events.Progress{Phase: events.PhaseFetch, Done: 10, Unit: "bytes"})
	_, endTwo := begin(two, jobFor(t, "c2", "https://example.com/acme/gadgets.git"))

	all := awaitActivities(t, store, 2, nil)
	slices.SortFunc(all, func(a, b state.Activity) int { return strings.Compare(a.Worker, b.Worker) }) // they began together
	a := all[0]
	if a.Repo != "Acme/Widgets" || a.Job != "c1" || a.Worker != "w1" || a.Operation != "sync" || a.App != "docs" || a.Fence != 1795223511284000 {
		t.Errorf("activity %+v", a)
	}
	if a.Progress != (events.Progress{Phase: events.PhaseFetch, Done: 10, Unit: "bytes"}) {
		t.Errorf("progress %+v", a.Progress)
	}
	if took := a.At.Sub(a.Since); took < 500*time.Millisecond || took > time.Minute {
		t.Errorf("it has taken %v, want half a second or so", took)
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
	stopOne() // with its work under way, as at the end of a drain
	if all, err := store.Activities(ctx); err != nil || len(all) != 0 {
		t.Errorf("%v, %v: the worker has ended", all, err)
	}
	if n := client.Exists(ctx, events.DefaultNamespace.Working()).Val(); n != 0 {
		t.Error("something is left in Redis")
	}
}

func TestADeadWorkerIsNotSeenAndThenForgotten(t *testing.T) {
	ctx := context.Background()
	client := redistest.Start(t).Client()
	store, key := state.NewStore(client, events.DefaultNamespace), events.DefaultNamespace.Working()
	now, err := client.Time(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	said := func(ago time.Duration) string {
		return fmt.Sprintf(`%d [{"repo":"acme/widgets","job":"c1","operation":"sync","fence":7,"took_ms":1000}]`, now.Add(-ago).UnixMilli())
	}
	client.HSet(ctx, key, "alive", said(0), "dead", said(30*time.Second), "forgotten", said(2*time.Minute), "ahead", said(-time.Hour),
		"no moment", "[]", "no JSON", fmt.Sprintf("%d [", now.UnixMilli()), "nothing", "")
	all, err := store.Activities(ctx)
	if err != nil || len(all) != 1 || all[0].Worker != "alive" {
		t.Errorf("%+v, %v; want the one that is alive", all, err)
	}
	if since := now.Add(-time.Second); all[0].Since.UnixMilli() != since.UnixMilli() {
		t.Errorf("since %v, want %v", all[0].Since, since)
	}
	if fields := client.HKeys(ctx, key).Val(); len(fields) != 3 {
		t.Errorf("left are %q, want those of the last minute", fields)
	}
	client.Set(ctx, key, "of another type", 0)
	if _, err := store.Activities(ctx); err == nil {
		t.Error("no error of a key that is no hash")
	}
}

// counted is a Redis that takes every script, and counts.
type counted struct {
	redis.Scripter
	calls, done atomic.Int64
}

func (c *counted) EvalSha(ctx context.Context, _ string, _ []string, args ...any) *redis.Cmd {
	c.calls.Add(1)
	if args[0] == "done" {
		c.done.Add(1)
	}
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(redis.Nil)
	return cmd
}

func TestWhatIsSaidIsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fake counted
		r, stop := reporting(t, &fake, "w1")
		defer stop()
		job := jobFor(t, "c1", "https://example.com/acme/widgets.git")
		for range 100 { // one after the other, 40 s in all
			_, end := begin(r, job)
			time.Sleep(400 * time.Millisecond)
			end()
		}
		time.Sleep(time.Hour)
		if n := fake.calls.Load(); n != 0 {
			t.Fatalf("%d calls while there was nothing to say", n)
		}
		progress, end := begin(r, job)
		for i := range 10_000 { // in 10 s
			progress(events.Progress{Phase: events.PhaseFetch, Done: int64(i), Unit: "bytes"})
			time.Sleep(time.Millisecond)
		}
		if n := fake.calls.Load(); n < 15 || n > 20 {
			t.Errorf("%d calls in 10 s of progress, want two a second", n)
		}
		synctest.Wait()
		fake.calls.Store(0)
		time.Sleep(10 * time.Second)
		if n := fake.calls.Load(); n < 4 || n > 6 {
			t.Errorf("%d calls in 10 s without progress, want a sign of life every 2 s", n)
		}
		time.Sleep(10 * time.Millisecond) // past a tick at that very moment
		synctest.Wait()
		fake.calls.Store(0)
		end()
		time.Sleep(time.Hour)
		if n, done := fake.calls.Load(), fake.done.Load(); n != 1 || done != 1 {
			t.Errorf("%d calls in the hour after, %d of which take it back; want one", n, done)
		}
	})
}

// TestTheDeadAreForgottenThoughNobodyLooks is of workers that crash again and again beside one that does not.
func TestTheDeadAreForgottenThoughNobodyLooks(t *testing.T) {
	client, key := redistest.Start(t).Client(), events.DefaultNamespace.Working()
	client.HSet(t.Context(), key, "dead", "1795223511284 []", "dead, too", "1795223511284 []")
	r, _ := reporting(t, client, "alive")
	progress, end := begin(r, jobFor(t, "c1", "https://example.com/acme/widgets.git"))
	defer end()
	for done, deadline := int64(1), time.Now().Add(time.Minute); client.HLen(t.Context(), key).Val() != 1 || !client.HExists(t.Context(), key, "alive").Val(); done++ {
		if time.Now().After(deadline) {
			t.Fatalf("there are %v", client.HKeys(t.Context(), key).Val())
		}
		progress(events.Progress{Phase: events.PhaseFetch, Done: done, Unit: "bytes"})
		time.Sleep(10 * time.Millisecond)
	}
}

func TestOnlyTheLongestOfManyAreToldOf(t *testing.T) {
	server := redistest.Start(t)
	store := state.NewStore(server.Client(), events.DefaultNamespace)
	r, _ := reporting(t, server.Client(), "w1")
	for i := range 150 {
		_, end := begin(r, jobFor(t, fmt.Sprintf("c%d", i), fmt.Sprintf("https://example.com/acme/r%d.git", i)))
		defer end()
	}
	awaitActivities(t, store, 100, nil)
}
