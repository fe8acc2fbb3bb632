package cli

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
)

// TestReleasedLeaseGoesToTheNextWaiter has a worker that holds the lease of a repository whose remote hangs, and one that waits.
func TestReleasedLeaseGoesToTheNextWaiter(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	asked, answer := make(chan struct{}, 10), make(chan struct{})
	git := proctest.StartGit(t, gitserver.WithBefore(func(ctx context.Context, _, service string) {
		if service != "git-upload-pack" { // the list of refs must begin within a minute
			return
		}
		asked <- struct{}{}
		select {
		case <-answer:
		case <-ctx.Done():
		}
	}))
	server, root := redistest.Start(t), t.TempDir()
	client := server.Client()
	head := proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	for _, worker := range []string{"w1", "w2"} {
		proctest.Start(t, "serve", "--redis", server.URL(), "--root", root, "--worker", worker, "--lease", "1m", "--log-level", "error")
	}
	for _, id := range []string{"c1", "c2"} {
		change := proctest.Must(events.NewChange(events.Change{ID: id, URL: git.URL("acme/widgets")}))(t)
		if err := app.PublishChange(ctx, client, events.DefaultNamespace, change); err != nil {
			t.Fatal(err)
		}
	}
	<-asked // until the holder of the lease has sent a request

	locks := func(args ...string) string {
		t.Helper()
		stdout, stderr, code := proctest.RunLockstep(t, nil, append(append([]string{"locks"}, args...), "--redis", server.URL())...)
		if code != term.ExitDone {
			t.Fatalf("locks %s: exit code %d: %s", strings.Join(args, " "), code, stderr)
		}
		return stdout
	}
	lock := proctest.DecodeJSON(t, locks("show", "Acme/Widgets", "--json"))
	fence := strconv.FormatFloat(lock["fence"].(float64), 'f', 0, 64)
	began := time.Now()
	if out := locks("release", "acme/widgets", "--fence", fence); !strings.Contains(out, "held by job") {
		t.Errorf("release:\n%s", out)
	}
	<-asked // until the next holder has sent a request
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the next holder got the lease after %v: it waited for the lease to expire", took)
	}
	close(answer)
	for _, r := range proctest.AwaitResults(t, client, 2) {
		if r.Type != events.ResultSynced || r.After != head || r.Attempts != 1 {
			t.Errorf("result %+v, want synced: losing the lease must not count as an attempt", r)
		}
	}
	proctest.AssertIdle(t, client)
}
