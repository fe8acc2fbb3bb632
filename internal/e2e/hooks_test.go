package e2e

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

// startReceiver starts a receiver of webhooks with its spool in dir.
func startReceiver(t *testing.T, server *redistest.Server, dir string) (p *proctest.Process, addr string) {
	t.Helper()
	hooks := writeHooks(t, dir)
	p = proctest.Start(t, "serve", "--roles", "receiver", "--listen", "127.0.0.1:0", "--redis", server.URL(), "--hooks", hooks, "--spool", filepath.Join(dir, "spool"))
	return p, p.ListenAddress("listening")
}

// sendPush sends the webhook of a push and returns the response.
func sendPush(t *testing.T, addr, id, url string) (status int, answer string) {
	t.Helper()
	return sendPushOf(t, addr, id, "acme/widgets", url)
}

// sendPushOf is sendPush for a repository with another path on the forge.
func sendPushOf(t *testing.T, addr, id, repo, url string) (status int, answer string) {
	t.Helper()
	return webhook{id: id, repo: repo, url: url, before: noCommit, after: strings.Repeat("c", 40)}.send(t, addr)
}

// hookChanges returns the IDs of the changes in the stream that come from webhooks, in order.
func hookChanges(t *testing.T, server *redistest.Server) (ids []string) {
	t.Helper()
	for _, entry := range proctest.Must(server.Client().XRange(context.Background(), events.DefaultNamespace.Changes(), "-", "+").Result())(t) {
		payload, _ := entry.Values["payload"].(string)
		if c := proctest.Must(events.ParseChange([]byte(payload)))(t); strings.HasPrefix(c.ID, "hub/") {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

func TestReceiverKilledDuringRedisOutageLosesNoDelivery(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t, "--appendonly", "yes", "--appendfsync", "always")
	url := "https://example.com/acme/widgets.git"
	watchURL(t, server.Client(), events.DefaultNamespace, url)
	dir := t.TempDir()
	first, addr := startReceiver(t, server, dir)
	var want []string
	take := func(id, how string) {
		t.Helper()
		if status, answer := sendPush(t, addr, id, url); status != http.StatusAccepted || !strings.Contains(answer, how) {
			t.Fatalf("%s: %d %s, want 202 with %s", id, status, answer, how)
		}
		want = append(want, "hub/"+id+"/0")
	}
	take("d0", "") // spooled, too, if Redis takes longer than a second
	server.Stop()
	for n := range 10 {
		take(fmt.Sprintf("w%d", n), `"spooled":true`)
	}
	if resp := proctest.Must(http.Get("http://" + addr + "/readyz"))(t); resp.StatusCode != http.StatusOK {
		t.Errorf("readyz without Redis: %d, want 200: it would receive no webhooks", resp.StatusCode)
	}
	first.Kill()
	_, addr = startReceiver(t, server, dir) // Redis is still down
	take("w10", `"spooled":true`)
	server.Restart()
	proctest.Eventually(t, func() bool { return len(hookChanges(t, server)) >= len(want) }, "all deliveries are in the stream")
	if got := hookChanges(t, server); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("changes %q, want %q", got, want)
	}
	proctest.Eventually(t, func() bool {
		status, answer := sendPush(t, addr, "w3", url)
		return status == http.StatusAccepted && strings.Contains(answer, `"duplicate":true`)
	}, "a repeated delivery is a duplicate")
	if got := hookChanges(t, server); len(got) != len(want) {
		t.Errorf("%d changes, want %d", len(got), len(want))
	}
}
