package intake_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"lockstep/events"
	"lockstep/internal/forge"
	"lockstep/internal/intake"
	"lockstep/internal/logtest"
	"lockstep/internal/redistest"
	"lockstep/internal/spool"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

func TestMain(m *testing.M) { testenv.Main(m, goleak.IgnoreCurrent()) }

// rig is an Intake on a private Redis, in which docs watches widgets.
type rig struct {
	t        *testing.T
	server   *redistest.Server
	client   redis.UniversalClient
	registry *watch.Registry
	spool    *spool.Spool
	in       *intake.Intake
	log      logtest.Buffer

	mu      sync.Mutex
	drained []string
}

func newRig(t *testing.T, dir string, maxBytes int64) *rig {
	t.Helper()
	t.Parallel() // each has a private Redis
	r := &rig{t: t, server: redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")}
	r.client = r.server.Client()
	r.registry = watch.NewRegistry(r.client, events.DefaultNamespace)
	r.put(watch.Watch{App: "docs", URL: widgets})
	if dir != "" {
		var err error
		if r.spool, err = spool.Open(dir, maxBytes); err != nil {
			t.Fatal(err)
		}
	}
	r.in = r.intake(r.spool)
	return r
}

func (r *rig) intake(s *spool.Spool) *intake.Intake {
	r.t.Helper()
	sources, err := forge.LoadSources("", []string{
		"LOCKSTEP_HOOK_HUB_FORGE=github", "LOCKSTEP_HOOK_HUB_SECRET=a secret of sixteen bytes",
		"LOCKSTEP_HOOK_HUB_AUTO_APP=search", "LOCKSTEP_HOOK_HUB_AUTO_URLS=https://example.com/auto/",
	})
	if err != nil {
		r.t.Fatal(err)
	}
	in, err := intake.New(intake.Config{Registry: r.registry, Sources: sources, Spool: s, Adopt: 50 * time.Millisecond, RedisTimeout: time.Minute, SpoolTimeout: time.Minute, Log: slog.New(slog.NewTextHandler(&r.log, nil)), Drained: func(outcome string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.drained = append(r.drained, outcome)
	}})
	if err != nil {
		r.t.Fatal(err)
	}
	return in
}

func (r *rig) put(w watch.Watch) {
	r.t.Helper()
	if _, err := r.registry.Put(r.t.Context(), w); err != nil {
		r.t.Fatal(err)
	}
}

// run drains the spool until the test ends.
func (r *rig) run(in *intake.Intake) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { in.Run(ctx) })
	stop = func() { cancel(); done.Wait() }
	r.t.Cleanup(stop)
	return stop
}

// push returns a delivery of a push to a repository on example.com.
func push(t *testing.T, id, name string) forge.Delivery {
	return forge.Delivery{Source: "hub", ID: id, Event: "push", Events: []forge.Event{{
		Kind: forge.Pushed, Repo: repo(t, name), URLs: []string{"https://example.com/" + name + ".git"}, Ref: ref(t, "main"), After: commit,
	}}}
}

func (r *rig) take(d forge.Delivery) (intake.Outcome, error) {
	src := forge.Source{Name: "hub", Auto: &forge.Auto{App: "search", URLs: []string{"https://example.com/auto/"}}}
	return r.in.Take(r.t.Context(), src, d)
}

// must takes a delivery and checks the result.
func (r *rig) must(d forge.Delivery, want string) {
	r.t.Helper()
	out, err := r.take(d)
	if err != nil || out.Result != want {
		r.t.Fatalf("delivery %s: %+v, error %v; want %s", d.ID, out, err, want)
	}
}

// changes returns the IDs of the changes queued by webhooks, in order.
func (r *rig) changes() (ids []string) {
	r.t.Helper()
	entries, err := r.client.XRange(context.Background(), events.DefaultNamespace.Changes(), "-", "+").Result()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, entry := range entries {
		payload, _ := entry.Values["payload"].(string)
		if c, err := events.ParseChange([]byte(payload)); err == nil && strings.HasPrefix(c.ID, "hub/") {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

func (r *rig) awaitIDs(n int) []string {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ids := r.changes(); len(ids) >= n && (r.spool == nil || !r.spool.Waiting()) {
			return ids
		}
	}
	r.t.Fatalf("%d changes, want %d: %q", len(r.changes()), n, r.changes())
	return nil
}

func TestDeliveriesAreDeduplicated(t *testing.T) {
	r := newRig(t, "", 1<<30)
	r.must(push(t, "d1", "acme/widgets"), intake.Accepted)
	r.must(push(t, "d1", "acme/widgets"), intake.Duplicate)
	r.must(push(t, "d2", "acme/widgets"), intake.Accepted)
	if got, want := r.changes(), []string{"hub/d1/0", "hub/d2/0"}; !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
}

func TestOutdatedCacheIsNotUsed(t *testing.T) {
	r := newRig(t, "", 1<<30)
	r.must(push(t, "d1", "acme/widgets"), intake.Accepted) // and cached
	main, err := watch.ParseSelector("refs/heads/main")
	if err != nil {
		t.Fatal(err)
	}
	r.put(watch.Watch{App: "scan", URL: widgets, Ref: main})
	if out, err := r.take(push(t, "d2", "acme/widgets")); err != nil || out.Changes != 2 {
		t.Errorf("new watch: %+v, error %v", out, err)
	}
	tag := push(t, "d3", "acme/widgets")
	tag.Events[0].Ref = ref(t, "refs/tags/v1")
	r.must(tag, intake.Ignored)
	tags, err := watch.ParseSelector("refs/tags/*")
	if err != nil {
		t.Fatal(err)
	}
	r.put(watch.Watch{App: "scan", URL: widgets, Ref: tags})
	r.must(tag, intake.Accepted) // although the cache has no watch for it
	for _, w := range []watch.Key{{App: "docs", Repo: repo(t, "acme/widgets")}, {App: "scan", Repo: repo(t, "acme/widgets"), Ref: main}, {App: "scan", Repo: repo(t, "acme/widgets"), Ref: tags}} {
		if _, err := r.registry.Remove(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	r.must(push(t, "d4", "acme/widgets"), intake.Ignored)
	r.put(watch.Watch{App: "docs", URL: widgets})
	r.must(push(t, "d5", "acme/widgets"), intake.Accepted)
}

func TestWatchesAtAnyPathReceiveChanges(t *testing.T) {
	r := newRig(t, "", 1<<30)
	at := func(path, url string) { r.put(watch.Watch{App: "docs", Repo: repo(t, path), URL: url}) }
	at("mirror/gadgets", "ssh://git@example.com:7999/acme/gadgets.git")
	at("elsewhere/gadgets", "https://example.org/acme/gadgets.git")
	r.must(push(t, "d1", "acme/gadgets"), intake.Accepted)
	r.must(push(t, "d2", "acme/widgets"), intake.Accepted) // and cached
	at("mirror/widgets", widgets)
	if out, err := r.take(push(t, "d3", "acme/widgets")); err != nil || out.Changes != 2 {
		t.Errorf("new path: %+v, error %v", out, err)
	}
	if _, err := r.registry.Move(t.Context(), repo(t, "mirror/widgets"), repo(t, "mirror/widgets"), gadgets); err != nil {
		t.Fatal(err)
	}
	for id, name := range map[string]string{"d4": "acme/widgets", "d5": "acme/gadgets"} {
		want := map[string]int{"d4": 1, "d5": 2}[id]
		if out, err := r.take(push(t, id, name)); err != nil || out.Changes != want {
			t.Errorf("%s after a move: %+v, error %v; want %d changes", name, out, err, want)
		}
	}
}

func TestAutomaticWatchDoesNotTakeAnotherPath(t *testing.T) {
	r := newRig(t, "", 1<<30)
	r.put(watch.Watch{App: "search", Repo: repo(t, "auto/one"), URL: "https://example.org/auto/one.git"}) // the same app
	r.put(watch.Watch{App: "docs", Repo: repo(t, "auto/two"), URL: "https://example.org/auto/two.git"})
	r.put(watch.Watch{App: "docs", Repo: repo(t, "mirror/three"), URL: "https://example.com/auto/three.git"})
	for id, want := range map[string]string{"auto/one": "by app search", "auto/two": "by app docs"} {
		out, err := r.take(push(t, id, id))
		if err != nil || out.Result != intake.Ignored || !strings.HasPrefix(out.Why, "cannot be watched: ") || !strings.Contains(out.Why, want) {
			t.Errorf("%s: %+v, error %v", id, out, err)
		}
		set, err := r.registry.Of(t.Context(), repo(t, id))
		if err != nil || len(set.Watches) != 1 || set.Watches[0].URL != "https://example.org/"+id+".git" {
			t.Errorf("%s: watches %+v, error %v", id, set.Watches, err)
		}
	}
	r.must(push(t, "d3", "auto/three"), intake.Accepted) // watched at another path
	if set, err := r.registry.Of(t.Context(), repo(t, "auto/three")); err != nil || len(set.Watches) != 0 {
		t.Errorf("watches %+v, error %v", set.Watches, err)
	}
}

func TestAutomaticWatchAtTheFirstPush(t *testing.T) {
	r := newRig(t, "", 1<<30)
	r.must(push(t, "d1", "auto/new"), intake.Accepted)
	set, err := r.registry.Of(t.Context(), repo(t, "auto/new"))
	if err != nil || len(set.Watches) != 1 || set.Watches[0].App != "search" || !set.Watches[0].Auto {
		t.Fatalf("watches %+v, error %v", set.Watches, err)
	}
	r.must(push(t, "d1", "auto/new"), intake.Duplicate)
	r.must(push(t, "d2", "auto/new/below"), intake.Ignored) // inside the other path
	r.must(push(t, "d3", "others/new"), intake.Ignored)
	if got, want := r.changes(), []string{"hub/d1/0"}; !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
}

func TestDeliveriesAreSpooledInOrderDuringARedisOutage(t *testing.T) {
	r := newRig(t, t.TempDir(), 1<<30)
	r.run(r.in)
	r.must(push(t, "d0", "acme/widgets"), intake.Accepted)
	r.server.Stop()
	want := []string{"hub/d0/0"}
	fastest := time.Hour // the machine may be slow at times
	for n := range 20 {
		began := time.Now()
		id := fmt.Sprintf("w%02d", n)
		r.must(push(t, id, "acme/widgets"), intake.Spooled)
		fastest = min(fastest, time.Since(began))
		want = append(want, "hub/"+id+"/0")
	}
	if fastest > time.Second {
		t.Errorf("took at least %v", fastest)
	}
	r.must(push(t, "w03", "acme/widgets"), intake.Spooled) // redelivery
	r.must(push(t, "x1", "acme/others"), intake.Spooled)   // unwatched, but the registry is unreachable
	r.server.Restart()
	if got := r.awaitIDs(len(want)); !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
	r.must(push(t, "d9", "acme/widgets"), intake.Accepted)
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.drained)
	if got := slices.Compact(slices.Clone(r.drained)); len(r.drained) != 22 || !slices.Equal(got, []string{intake.Accepted, intake.Duplicate, intake.Ignored}) {
		t.Errorf("%d left the spool: %q", len(r.drained), got)
	}
}

// spooledSize is the space of a delivery of [push] in the spool.
const spooledSize = 8 << 10

func TestDeliveryFailsIfRedisIsDownAndTheSpoolIsFull(t *testing.T) {
	for name, tc := range map[string]struct {
		dir  string
		kept int
	}{"no spool": {"", 0}, "a full one": {t.TempDir(), 2}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tc.dir, 2*spooledSize)
			r.must(push(t, "d0", "acme/widgets"), intake.Accepted)
			r.server.Stop()
			for n := range tc.kept {
				r.must(push(t, fmt.Sprint("w", n), "acme/widgets"), intake.Spooled)
			}
			fastest := time.Hour
			for range 3 {
				began := time.Now()
				if out, err := r.take(push(t, "r1", "acme/widgets")); err == nil {
					t.Errorf("accepted: %+v", out)
				}
				fastest = min(fastest, time.Since(began))
			}
			if fastest > time.Second {
				t.Errorf("took at least %v", fastest)
			}
			r.server.Restart()
			r.must(push(t, "r1", "acme/widgets"), intake.Accepted) // sent directly, because the spool is full
			r.run(r.in)
			r.awaitIDs(2 + tc.kept)
		})
	}
}

func TestLostAnswerOfRedisIsDeduplicated(t *testing.T) {
	r := newRig(t, t.TempDir(), 1<<30)
	d := push(t, "d1", "acme/widgets")
	r.must(d, intake.Accepted)
	item, err := json.Marshal(map[string]any{"at": time.Now(), "delivery": d})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.spool.Append(t.Context(), item); err != nil { // as if the answer was lost
		t.Fatal(err)
	}
	r.must(push(t, "d2", "acme/widgets"), intake.Spooled) // behind the first
	r.run(r.in)
	if got, want := r.awaitIDs(2), []string{"hub/d1/0", "hub/d2/0"}; !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
}

func TestUndecodableSpooledDeliveryIsDropped(t *testing.T) {
	r := newRig(t, t.TempDir(), 1<<30)
	for _, item := range []string{"", "{", `{"delivery":{"events":[{"repo":".."}]}}`, "[]", "{}"} {
		if err := r.spool.Append(t.Context(), []byte(item)); err != nil {
			t.Fatal(err)
		}
	}
	r.must(push(t, "d1", "acme/widgets"), intake.Spooled)
	r.run(r.in)
	r.awaitIDs(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if want := []string{"dropped", "dropped", "dropped", "dropped", "dropped", intake.Accepted}; !slices.Equal(r.drained, want) {
		t.Errorf("%q, want %q", r.drained, want)
	}
}

func TestRefusedDeliveryDoesNotBlockOthers(t *testing.T) {
	r := newRig(t, t.TempDir(), 1<<30)
	broken := watch.Watch{App: "docs", URL: "https://example.com/acme/broken.git"}
	r.put(broken)
	if err := r.client.HSet(t.Context(), events.DefaultNamespace.Watches()+"of:acme/broken", "docs ", "{").Err(); err != nil {
		t.Fatal(err)
	}
	r.must(push(t, "b1", "acme/broken"), intake.Spooled)
	r.must(push(t, "d1", "acme/widgets"), intake.Spooled)
	stop := r.run(r.in)
	for deadline := time.Now().Add(time.Minute); len(r.changes()) < 1; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the next delivery is blocked")
		}
	}
	r.put(broken) // repairs it in one step: without a watch the delivery would be ignored
	if got, want := r.awaitIDs(2), []string{"hub/d1/0", "hub/b1/0"}; !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
	stop()
}

func TestDeliveriesOfDeadProcessesAreAdopted(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, dir, 1<<30)
	dead, err := spool.Open(dir, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	r.server.Stop()
	r.in = r.intake(dead)
	r.must(push(t, "d1", "acme/widgets"), intake.Spooled)
	r.server.Restart()
	r.in = r.intake(r.spool)
	r.run(r.in)
	if got, want := r.awaitIDs(1), []string{"hub/d1/0"}; !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
}

func TestCachedWatchesSaveARoundTrip(t *testing.T) {
	r := newRig(t, "", 1<<30)
	count := &redistest.RoundTrips{}
	r.client.AddHook(count)
	r.put(watch.Watch{App: "docs", Repo: repo(t, "mirror/w"), URL: widgets})
	for n := range 5 {
		r.must(push(t, fmt.Sprint("d", n), "acme/widgets"), intake.Accepted)
	}
	before := count.Load()
	r.must(push(t, "d9", "acme/widgets"), intake.Accepted)
	if count.Load() != before+1 {
		t.Errorf("%d commands for a delivery, want one", count.Load()-before)
	}
}
