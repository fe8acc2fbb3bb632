package cli

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
)

// TestDeadLettersAreShown publishes a malformed and an undecodable change.
func TestDeadLettersAreShown(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	git, server, root := proctest.StartGit(t), redistest.Start(t), t.TempDir()
	client := server.Client()
	dead := func(want int, args ...string) string {
		t.Helper()
		stdout, stderr, code := proctest.RunLockstep(t, nil, append(append([]string{"dead"}, args...), "--redis", server.URL())...)
		if code != want {
			t.Fatalf("dead %s: exit code %d, want %d: %s", strings.Join(args, " "), code, want, stderr)
		}
		return stdout + stderr
	}
	letters := func() []redis.XMessage {
		return client.XRange(ctx, events.DefaultNamespace.Dead(), "-", "+").Val()
	}
	proctest.Start(t, "serve", "--redis", server.URL(), "--root", root, "--log-level", "error")
	remote := git.URL("acme/widgets")
	client.XAdd(ctx, &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: []string{"id", "c1", "repo", "acme/widgets", "url", remote, "after", "soon"}})
	client.XAdd(ctx, &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: []string{"id", "c2", "repo", "acme/widgets\x1b[31m", "\x1b]0;x\x07", "\xff"}})
	proctest.Eventually(t, func() bool { return len(letters()) == 2 }, "two dead letters")

	ids := map[string]string{} // by change ID
	for _, l := range letters() {
		id, _ := l.Values["original:id"].(string)
		ids[id] = l.ID
	}
	if out := dead(term.ExitDone, "show", ids["c1"]); !strings.Contains(out, "malformed") || !strings.Contains(out, "after, 4 bytes") {
		t.Errorf("show:\n%s", out)
	}
	if out := dead(term.ExitDone, "show", ids["c2"]) + dead(term.ExitDone, "ls"); strings.ContainsAny(out, "\x1b\x07") || !strings.Contains(out, "undecodable") {
		t.Errorf("show of an undecodable letter: %q", out)
	}
}

func TestServiceTrimsDeadLetters(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	namespace := events.DefaultNamespace
	for _, id := range []string{"1-0", "2-0", "*"} { // the first two IDs are from 1970
		if err := client.XAdd(ctx, &redis.XAddArgs{Stream: namespace.Dead(), ID: id, Values: []string{"reason", "r"}}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	p := proctest.Start(t, "serve", "--redis", server.URL(), "--root", t.TempDir(), "--listen", "127.0.0.1:0")
	p.AwaitLog("worker takes changes")
	address := p.ListenAddress("listening")
	proctest.Eventually(t, func() bool {
		resp := proctest.Must(http.Get("http://" + address + "/metrics"))(t)
		defer resp.Body.Close()
		return strings.Contains(string(proctest.Must(io.ReadAll(resp.Body))(t)), `lockstep_dead_letters_dropped_total{cause="age"} 2`)
	}, "two old letters are dropped")
	if n := client.XLen(ctx, namespace.Dead()).Val(); n != 1 {
		t.Errorf("%d letters left, want only the new one", n)
	}
	if code := p.Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d, want 0", code)
	}
}
