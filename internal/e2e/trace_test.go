package e2e

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/proctest"
	"lockstep/internal/term"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/watch"
)

// collector receives spans with OTLP over HTTP.
type collector struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*tracepb.Span
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var request collectorpb.ExportTraceServiceRequest
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &request) != nil {
			t.Errorf("invalid trace export to %s: %v", r.URL.Path, err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, resource := range request.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// env returns the variables that make a process send its spans to the collector.
func (c *collector) env() []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_BSP_SCHEDULE_DELAY=20"}
}

func (c *collector) all() []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*tracepb.Span(nil), c.spans...)
}

// find returns the first span with the name and attributes, which are keys and values in turn, or nil.
func (c *collector) find(name string, attributes ...string) *tracepb.Span {
	for _, span := range c.all() {
		has := map[string]string{}
		for _, a := range span.Attributes {
			has[a.Key] = a.Value.GetStringValue()
		}
		matches := span.Name == name
		for i := 0; i < len(attributes); i += 2 {
			matches = matches && has[attributes[i]] == attributes[i+1]
		}
		if matches {
			return span
		}
	}
	return nil
}

// await waits until find returns a span.
func (c *collector) await(t *testing.T, name string, attributes ...string) (span *tracepb.Span) {
	t.Helper()
	proctest.Eventually(t, func() bool { span = c.find(name, attributes...); return span != nil }, "a span %s %q", name, attributes)
	return span
}

// startWith starts lockstep with additional variables, and without OpenTelemetry variables from the test's environment.
func startWith(t *testing.T, env []string, args ...string) *proctest.Process {
	t.Helper()
	cmd := proctest.Command(t, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "OTEL_") && !strings.HasPrefix(v, "TRACE") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	return proctest.StartCommand(t, cmd)
}

// notifiedApp is an app that receives notifications, and the credentials to sign them.
type notifiedApp struct {
	*httptest.Server
	posts       chan http.Header
	credentials string
}

func startNotifiedApp(t *testing.T, client redis.UniversalClient, url string) *notifiedApp {
	t.Helper()
	a := &notifiedApp{posts: make(chan http.Header, 10), credentials: t.TempDir()}
	a.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		a.posts <- r.Header
	}))
	t.Cleanup(a.Close)
	proctest.Must(0, os.Mkdir(filepath.Join(a.credentials, "docs-hook"), 0o700))(t)
	for file, text := range map[string]string{"signingSecret": "s3cret-of-24-characters\n", "urls": a.URL + "/\n"} {
		proctest.Must(0, os.WriteFile(filepath.Join(a.credentials, "docs-hook", file), []byte(text), 0o600))(t)
	}
	proctest.Must(watch.NewRegistry(client, events.DefaultNamespace).Put(t.Context(), watch.Watch{
		App: "docs", URL: url, Poll: watch.Never, NotifyURL: a.URL + "/hook?key=hunter2", NotifySecret: "docs-hook",
	}))(t)
	proctest.Must(client.Del(t.Context(), events.DefaultNamespace.Changes()).Result())(t) // drop the first poll
	return a
}

func (a *notifiedApp) await(t *testing.T) http.Header {
	t.Helper()
	select {
	case header := <-a.posts:
		return header
	case <-time.After(time.Minute):
		t.Fatal("no notification")
		return nil
	}
}

// pushTraced sends a webhook with a traceparent header.
func pushTraced(t *testing.T, addr, url, head string) {
	t.Helper()
	webhook{
		id: "d1", repo: "acme/widgets", url: url, before: noCommit, after: head, traceparent: "00-" + strings.Repeat("ab", 16) + "-0123456789abcdef-01",
	}.mustSend(t, addr)
}

// startThree starts a receiver, at addr, a worker and a notifier as separate processes.
func startThree(t *testing.T, server *redistest.Server, app *notifiedApp, env []string) (worker, notifier *proctest.Process, addr string) {
	t.Helper()
	dir := t.TempDir()
	hooks := writeHooks(t, dir)
	receiver := startWith(t, env, "serve", "--roles", "receiver", "--listen", "127.0.0.1:0", "--redis", server.URL(), "--hooks", hooks, "--spool", filepath.Join(dir, "spool"))
	worker = startWith(t, env, "serve", "--roles", "worker", "--redis", server.URL(), "--root", filepath.Join(dir, "root"), "--log-format", "json", "--log-level", "debug")
	notifier = startWith(t, env, "serve", "--roles", "notifier", "--redis", server.URL(), "--root", filepath.Join(dir, "root"),
		"--credentials", app.credentials, "--notify-hosts", "127.0.0.1", "--log-level", "debug")
	notifier.AwaitLog("consumer group created")
	return worker, notifier, receiver.ListenAddress("listening")
}

func TestTraceSpansWebhookToNotification(t *testing.T) {
	t.Parallel()
	git, server, spans := proctest.StartGit(t), redistest.Start(t), startCollector(t)
	head := proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"README": "hello\n"}))(t)
	url := git.URL("acme/widgets")
	app := startNotifiedApp(t, server.Client(), url)
	worker, notifier, addr := startThree(t, server, app, spans.env())
	pushTraced(t, addr, url, head)

	notification := app.await(t)
	hook := spans.await(t, "POST /hooks/{source}", "lockstep.delivery", "d1", "lockstep.repo", "acme/widgets", "lockstep.outcome", "accepted")
	work := spans.await(t, "process "+events.DefaultNamespace.Changes(), "lockstep.outcome", "synced", "lockstep.repo", "acme/widgets", "lockstep.operation", "sync",
		"messaging.system", "redis", "messaging.destination.name", events.DefaultNamespace.Changes(), "messaging.consumer.group.name", "workers")
	post := spans.await(t, "POST notification", "lockstep.outcome", "delivered", "lockstep.app", "docs")
	if len(hook.ParentSpanId) != 0 || hex.EncodeToString(hook.TraceId) == strings.Repeat("ab", 16) {
		t.Errorf("trace %x, parent %x: want a new trace instead of the sender's", hook.TraceId, hook.ParentSpanId)
	}
	isBelow := func(child, parent *tracepb.Span) {
		t.Helper()
		if string(child.TraceId) != string(hook.TraceId) || string(child.ParentSpanId) != string(parent.SpanId) {
			t.Errorf("%s: trace %x, parent %x; want %x and %s, %x", child.Name, child.TraceId, child.ParentSpanId, hook.TraceId, parent.Name, parent.SpanId)
		}
	}
	isBelow(work, hook)
	isBelow(post, work)
	for _, step := range []string{"lease wait", "list", "fetch", "build", "publish", "settle"} {
		isBelow(spans.await(t, step), work)
	}
	if got, want := notification.Get("traceparent"), "00-"+hex.EncodeToString(hook.TraceId)+"-"+hex.EncodeToString(post.SpanId)+"-01"; got != want {
		t.Errorf("traceparent %q, want %q", got, want)
	}
	worker.AwaitLog(`"msg":"change settled"`)
	for line := range strings.Lines(worker.Log.String()) {
		if strings.Contains(line, `"msg":"change settled"`) || strings.Contains(line, `"msg":"lock acquired"`) {
			if doc := proctest.DecodeJSON(t, line); doc["trace_id"] != hex.EncodeToString(hook.TraceId) || doc["span_id"] != hex.EncodeToString(work.SpanId) {
				t.Errorf("log line lacks trace %x and span %x: %s", hook.TraceId, work.SpanId, line)
			}
		}
	}
	notifier.AwaitLog("trace_id=" + hex.EncodeToString(hook.TraceId))
	for _, span := range spans.all() {
		for _, a := range span.Attributes {
			if text := a.Value.GetStringValue(); strings.Contains(text, "hunter2") || strings.Contains(text, "://") {
				t.Errorf("%s has %s = %q", span.Name, a.Key, text)
			}
		}
	}
}

func TestSyncJoinsTraceOfPipeline(t *testing.T) {
	t.Parallel()
	git, spans := proctest.StartGit(t), startCollector(t)
	proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"README": "hello\n"}))(t)
	pipeline := strings.Repeat("cd", 16)
	env := append(spans.env(), "TRACEPARENT=00-"+pipeline+"-0123456789abcdef-01")
	if _, stderr, code := proctest.RunLockstep(t, env, "sync", git.URL("acme/widgets"), "--root", t.TempDir()); code != term.ExitDone {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	command := spans.await(t, "lockstep sync") // sent before the command ended
	work := spans.await(t, "process "+events.DefaultNamespace.Changes())
	if hex.EncodeToString(command.TraceId) != pipeline || hex.EncodeToString(command.ParentSpanId) != "0123456789abcdef" {
		t.Errorf("trace %x, parent %x, want those of the pipeline", command.TraceId, command.ParentSpanId)
	}
	if string(work.TraceId) != string(command.TraceId) || string(work.ParentSpanId) != string(command.SpanId) {
		t.Errorf("the worker's span has trace %x, parent %x; want %x and %x", work.TraceId, work.ParentSpanId, command.TraceId, command.SpanId)
	}
}
