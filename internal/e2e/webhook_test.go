package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/watch"
)

const testHookSecret = "a secret of the hub, for tests"

// noCommit is the commit before the first push to a branch.
var noCommit = strings.Repeat("0", 40)

// writeHooks makes a folder of webhook sources in dir with one source, hub, of GitHub.
func writeHooks(t *testing.T, dir string) (hooks string) {
	t.Helper()
	hooks = filepath.Join(dir, "hooks")
	proctest.Must(0, os.MkdirAll(filepath.Join(hooks, "hub"), 0o700))(t)
	for name, content := range map[string]string{"forge": "github", "secret": testHookSecret} {
		proctest.Must(0, os.WriteFile(filepath.Join(hooks, "hub", name), []byte(content), 0o600))(t)
	}
	return hooks
}

// watchURL adds a watch of a repository.
func watchURL(t *testing.T, client redis.UniversalClient, namespace events.Namespace, url string) {
	t.Helper()
	proctest.Must(watch.NewRegistry(client, namespace).Put(t.Context(), watch.Watch{App: "bench", URL: url}))(t)
}

// webhook is the webhook of a push to main, as GitHub sends it.
type webhook struct {
	id                       string // of the delivery
	repo, url, before, after string
	traceparent              string // header, optional
}

// send sends the webhook to a receiver and returns the response.
func (w webhook) send(t *testing.T, addr string) (status int, answer string) {
	t.Helper()
	body := proctest.Must(json.Marshal(map[string]any{
		"ref": "refs/heads/main", "before": w.before, "after": w.after, "created": false, "deleted": false, "forced": false,
		"repository": map[string]any{"id": 1296269, "full_name": w.repo, "clone_url": w.url, "default_branch": "main", "private": false},
	}))(t)
	mac := hmac.New(sha256.New, []byte(testHookSecret))
	mac.Write(body)
	req := proctest.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/hooks/hub", strings.NewReader(string(body))))(t)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-GitHub-Event", "push")
	req.Header.Set("X-GitHub-Delivery", w.id)
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	if w.traceparent != "" {
		req.Header.Set("Traceparent", w.traceparent)
	}
	req.Close = true // the receiver may be killed before the next one
	resp := proctest.Must(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	return resp.StatusCode, string(proctest.Must(io.ReadAll(resp.Body))(t))
}

// mustSend sends the webhook, which must be accepted.
func (w webhook) mustSend(t *testing.T, addr string) {
	t.Helper()
	if status, answer := w.send(t, addr); status != http.StatusAccepted {
		t.Fatalf("delivery %s: %d %s", w.id, status, answer)
	}
}
