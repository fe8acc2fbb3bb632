package cli

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
)

// TestRefusedNotificationIsExplained runs a service with an app that refuses its notifications: show and status say which, why, and when
// it is sent again.
func TestRefusedNotificationIsExplained(t *testing.T) {
	t.Parallel()
	server, git := redistest.Start(t), proctest.StartGit(t)
	proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"a": "1"}))(t)
	notified := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(notified.Close)
	credential := filepath.Join(t.TempDir(), "docs")
	for name, text := range map[string]string{"urls": notified.URL + "/", "signingSecret": "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"} {
		if err := os.MkdirAll(credential, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(credential, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	service := proctest.Start(t, "serve", "--redis", server.URL(), "--root", t.TempDir(), "--credentials", filepath.Dir(credential),
		"--notify-hosts", strings.TrimPrefix(notified.URL, "http://"))
	service.AwaitLog("consumer group created")
	run := func(args ...string) string {
		t.Helper()
		stdout, stderr, code := proctest.RunLockstep(t, nil, append(args, "--redis", server.URL())...)
		if code != term.ExitDone {
			t.Fatalf("%q: exit code %d: %s", args, code, stderr)
		}
		return stdout
	}
	run("watch", "add", git.URL("acme/widgets"), "--app", "docs", "--notify-url", notified.URL+"/", "--notify-secret", "docs")
	service.AwaitLog("notification failed, will retry")

	shown := run("repos", "show", "acme/widgets")
	for _, want := range []string{"notify docs", "1 waiting since 20", ", attempt 1 failed, next attempt 20", ": answered 503 Service Unavailable\n"} {
		if !strings.Contains(shown, want) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
	shown = run("repos", "show", "acme/widgets", "--json")
	if !strings.Contains(shown, `"waiting_notifications":[{"app":"docs","repo":"acme/widgets","waiting":1,"failed_attempts":1,"next":"20`) {
		t.Errorf("no notification in %s", shown)
	}
	if shown = run("status"); !strings.Contains(shown, "notifications to docs about 1 repository") || !strings.Contains(shown, "1 waiting to be posted, 1 failing: docs") {
		t.Errorf("status does not report it:\n%s", shown)
	}
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
