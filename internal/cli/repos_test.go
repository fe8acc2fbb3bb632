package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
	p := proctest.Start(t, "serve", "--redis", server.URL(), "--root", t.TempDir(), "--lease", "3s", "--lock-wait", "10m")
	change := proctest.Must(events.NewChange(events.Change{URL: remote.URL + "/acme/widgets.git"}))(t)
	for n := range 5 {
		change.ID, change.App = fmt.Sprint("c1-", n), fmt.Sprint("app-", n)
		proctest.Must(0, app.PublishChange(ctx, client, events.DefaultNamespace, change))(t)
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
	proctest.Must(0, app.PublishChange(ctx, client, events.DefaultNamespace, second))(t)
	due := "lockstep:{0}:due:changes:" + events.WorkersGroup
	until := proctest.Must(time.Parse(time.RFC3339Nano, show()["open_until"].(string)))(t)
	proctest.Eventually(t, func() bool {
		return proctest.Must(client.ZCount(ctx, due, strconv.FormatInt(until.UnixMilli(), 10), "+inf").Result())(t) == 6
	}, "all changes are parked until the circuit half-opens")
	if n := requests.Load(); n != before {
		t.Errorf("%d requests while the circuit was open, want none", n-before)
	}

	failures := 0
	for _, tries := range proctest.Must(client.HVals(ctx, "lockstep:{0}:failures:changes:"+events.WorkersGroup).Result())(t) {
		failures += proctest.Must(strconv.Atoi(tries))(t)
	}
	if failures != 5 {
		t.Errorf("%d attempts counted as failed, want 5: to wait must not count", failures)
	}

	failing.Store(false)
	for _, r := range proctest.AwaitResults(t, client, 6) {
		if r.Type != events.ResultSynced || r.After != head {
			t.Errorf("result %+v, want it synced", r)
		}
	}
	if c := show(); c["phase"] != "closed" || c["failures"] != 0.0 {
		t.Errorf("circuit %v, want it closed", c)
	}
	p.AwaitLog("circuit closed")
	proctest.AssertIdle(t, client)
}

func TestOverduePollIsDue(t *testing.T) {
	now := time.Now()
	if got := nextPoll(now.Add(-time.Second), now); got != "due" {
		t.Errorf("%q, want due", got)
	}
	if got := nextPoll(now.Add(time.Hour), now); !strings.Contains(got, "in ") {
		t.Errorf("%q, want the time left", got)
	}
}
