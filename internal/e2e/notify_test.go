package e2e

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

func TestAppIsNotifiedOfPush(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	git, server := proctest.StartGit(t), redistest.Start(t)
	client := server.Client()
	head := proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"README": "hello\n"}))(t)
	notified := make(chan events.Result, 1)
	app := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if r, err := events.ParseResult(body); err == nil && req.Header.Get("webhook-signature") != "" {
			notified <- r
		}
	}))
	defer app.Close()
	credentials := t.TempDir()
	proctest.Must(0, os.Mkdir(filepath.Join(credentials, "docs-hook"), 0o700))(t)
	for file, text := range map[string]string{"signingSecret": "s3cret-of-24-characters\n", "urls": app.URL + "/\n"} {
		proctest.Must(0, os.WriteFile(filepath.Join(credentials, "docs-hook", file), []byte(text), 0o600))(t)
	}
	proctest.Must(watch.NewRegistry(client, events.DefaultNamespace).Put(ctx, watch.Watch{
		App: "docs", URL: git.URL("acme/widgets"), Poll: watch.Never, NotifyURL: app.URL + "/hook", NotifySecret: "docs-hook",
	}))(t)
	proctest.Must(client.Del(ctx, events.DefaultNamespace.Changes()).Result())(t) // drop the first poll
	p := proctest.Start(t, "serve", "--redis", server.URL(), "--root", t.TempDir(), "--credentials", credentials,
		"--roles", "worker,notifier", "--notify-hosts", "127.0.0.1")
	p.AwaitLog("consumer group created")
	proctest.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(),
		Values: []string{"url", git.URL("acme/widgets"), "app", "docs", "id", "push-1"}}).Result())(t)
	select {
	case r := <-notified:
		if r.After != head || r.App != "docs" || r.Type != events.ResultSynced {
			t.Errorf("notified of %+v", r)
		}
	case <-time.After(time.Minute):
		t.Fatal("no notification")
	}
	if code := p.Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}
}
