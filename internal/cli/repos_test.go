package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
)

// TestCircuitBreakerPausesFailingRemote uses a remote that fails at first.
func TestCircuitBreakerPausesFailingRemote(t *testing.T) {
	t.Parallel()
	ctx, server := context.Background(), redistest.Start(t)
	client, git := server.Client(), proctest.StartGit(t)
	head := proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	var failing atomic.Bool
	var requests atomic.Int32
	failing.Store(true)
	to := proctest.Must(url.Parse(git.URL("")))(t)
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: to.Scheme, Host: to.Host})
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1); failing.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(remote.Close)
	p := proctest.Start(t, "serve", "--redis", server.URL(), "--root", t.TempDir(), "--lease", "10m", "--lock-wait", "10m")
	change := proctest.Must(events.NewChange(events.Change{URL: remote.URL + "/acme/widgets.git"}))(t)
	for n := range 5 {
		change.ID, change.App = fmt.Sprint("c1-", n), fmt.Sprint("app-", n)
		if err := app.PublishChange(ctx, client, events.DefaultNamespace, change); err != nil {
			t.Fatal(err)
		}
	}
	p.AwaitLog("circuit opened")

	show := func() map[string]any {
		t.Helper()
		stdout, stderr, code := proctest.RunLockstep(t, nil, "repos", "show", "acme/widgets", "--json", "--redis", server.URL())
		if code != term.ExitDone {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		return proctest.DecodeJSON(t, stdout)["circuit"].(map[string]any)
	}
	if c := show(); c["phase"] != "open" || c["failures"] != 5.0 || c["open_until"] == nil {
		t.Errorf("circuit %v, want it open after 5 failures", c)
	}
	before := requests.Load()
	second := proctest.Must(events.NewChange(events.Change{ID: "c2", URL: change.URL}))(t)
	if err := app.PublishChange(ctx, client, events.DefaultNamespace, second); err != nil {
		t.Fatal(err)
	}
	due := "lockstep:{0}:due:changes:" + events.WorkersGroup
	later := strconv.FormatInt(time.Now().Add(10*time.Minute).UnixMilli(), 10)
	proctest.Eventually(t, func() bool {
		return proctest.Must(client.ZCount(ctx, due, later, "+inf").Result())(t) == 2
	}, "the last change and the second one are parked until the circuit half-opens")
	if n := requests.Load(); n != before {
		t.Errorf("%d requests while the circuit was open, want none", n-before)
	}

	failing.Store(false)
	if err := client.HSet(ctx, events.DefaultNamespace.Repo(change.Repo), "circuit_open_until", 1).Err(); err != nil { // instead of waiting half an hour
		t.Fatal(err)
	}
	for _, id := range proctest.Must(client.ZRange(ctx, due, 0, -1).Result())(t) {
		if err := client.ZAddXX(ctx, due, redis.Z{Score: float64(time.Now().UnixMilli()), Member: id}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range proctest.AwaitResults(t, client, 6) {
		if r.Type != events.ResultSynced || r.After != head {
			t.Errorf("result %+v, want it synced", r)
		}
		if r.Attempts > 3 {
			t.Errorf("%d attempts, want at most 3: an open circuit must not count", r.Attempts)
		}
	}
	if c := show(); c["phase"] != "closed" || c["failures"] != 0.0 {
		t.Errorf("circuit %v, want it closed", c)
	}
	p.AwaitLog("circuit closed")
	proctest.AssertIdle(t, client)
}
