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

// TestLeasesAreShownAndReleased has a worker that holds the lease of a repository whose remote hangs, and one that waits.
func TestLeasesAreShownAndReleased(t *testing.T) {
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

	locks := func(want int, args ...string) string {
		t.Helper()
		stdout, stderr, code := proctest.RunLockstep(t, nil, append(append([]string{"locks"}, args...), "--redis", server.URL())...)
		if code != want {
			t.Fatalf("locks %s: exit code %d, want %d: %s", strings.Join(args, " "), code, want, stderr)
		}
		return stdout + stderr
	}
	if out := locks(term.ExitDone, "ls"); !strings.Contains(out, "acme/widgets") || !strings.Contains(out, "sync") {
		t.Errorf("ls:\n%s", out)
	}
	lock := proctest.DecodeJSON(t, locks(term.ExitDone, "show", "Acme/Widgets", "--json"))
	if lock["held"] != true || lock["repo"] != "acme/widgets" || lock["holder"].(map[string]any)["operation"] != "sync" {
		t.Errorf("show: %v", lock)
	}
	if out := locks(term.ExitDone, "show", "acme/other"); !strings.Contains(out, "nobody") {
		t.Errorf("show of a free lease:\n%s", out)
	}
	if out := locks(term.ExitFailed, "release", "acme/widgets", "--fence", "1"); !strings.Contains(out, "is not held with fence 1") {
		t.Errorf("release of another fence:\n%s", out)
	}
	fence := strconv.FormatFloat(lock["fence"].(float64), 'f', 0, 64)
	began := time.Now()
	if out := locks(term.ExitDone, "release", "acme/widgets", "--fence", fence); !strings.Contains(out, "held by job") {
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
	if out := locks(term.ExitUsage, "show", "acme/.."); !strings.Contains(out, "not a repository path") {
		t.Errorf("show of an invalid path:\n%s", out)
	}
}
