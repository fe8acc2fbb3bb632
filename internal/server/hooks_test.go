package server_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/forge"
	"lockstep/internal/intake"
	"lockstep/internal/logtest"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

const hubSecret = "a secret of the hub, 32 bytes or so"

func signed(body []byte) string {
	mac := hmac.New(sha256.New, []byte(hubSecret))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

func hubSources(t testing.TB) *forge.Sources {
	t.Helper()
	sources, err := forge.LoadSources("", []string{"LOCKSTEP_HOOK_HUB_FORGE=github", "LOCKSTEP_HOOK_HUB_SECRET=" + hubSecret})
	if err != nil {
		t.Fatal(err)
	}
	return sources
}

const pushOfWidgets = `{"ref":"refs/heads/main","before":"0000000000000000000000000000000000000000","after":"cccccccccccccccccccccccccccccccccccccccc",
"repository":{"full_name":"acme/widgets","clone_url":"https://example.com/acme/widgets.git","default_branch":"main"}}`

// intakeFunc is an adapter to use a function as a server.Intake.
type intakeFunc func(forge.Delivery) (intake.Outcome, error)

func (f intakeFunc) Take(_ context.Context, _ forge.Source, d forge.Delivery) (intake.Outcome, error) {
	return f(d)
}

// serveHooks serves webhooks of the source hub and passes them to in.
func serveHooks(t *testing.T, in server.Intake) (url string, log *logtest.Buffer, metrics func() string) {
	t.Helper()
	m := telemetry.New()
	log = &logtest.Buffer{}
	srv := httptest.NewServer(documented(t, server.Config{
		Hooks:   &server.Hooks{Sources: hubSources(t), Intake: in, Observe: m.Hooks(nil).Request},
		Metrics: m.Handler(), Log: slog.New(slog.NewTextHandler(log, nil)),
	}))
	t.Cleanup(srv.Close)
	return srv.URL, log, func() string {
		_, text := do(t, "GET", srv.URL+"/metrics", "", nil)
		return text
	}
}

func hubHeader(body, event, id string) http.Header {
	return http.Header{"X-Github-Event": {event}, "X-Github-Delivery": {id}, "X-Hub-Signature-256": {signed([]byte(body))}}
}

// registered returns a registry in which the app docs watches acme/widgets.
func registered(t *testing.T) (*redistest.Server, *watch.Registry) {
	t.Helper()
	redisServer := redistest.Start(t)
	registry := watch.NewRegistry(redisServer.Client(), events.DefaultNamespace)
	testenv.Must(registry.Put(t.Context(), watch.Watch{App: "docs", URL: "https://example.com/acme/widgets.git"}))(t)
	return redisServer, registry
}

func TestWebhookResponses(t *testing.T) {
	t.Parallel()
	_, registry := registered(t)
	in, err := intake.New(intake.Config{Registry: registry, Sources: hubSources(t), RedisTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	url, log, metrics := serveHooks(t, in)
	other := strings.ReplaceAll(pushOfWidgets, "widgets", "others")
	for _, tc := range []struct {
		name, path, body string
		header           http.Header
		status           int
		answer           string
	}{
		{"accepted", "/hooks/hub", pushOfWidgets, hubHeader(pushOfWidgets, "push", "d1"), 202, `{"delivery":"d1","accepted":1}`},
		{"a duplicate", "/hooks/hub", pushOfWidgets, hubHeader(pushOfWidgets, "push", "d1"), 202, `{"delivery":"d1","duplicate":true}`},
		{"not watched", "/hooks/hub", other, hubHeader(other, "push", "d2"), 202, `{"delivery":"d2","ignored":"nobody watches acme/others"}`},
		{"another event type", "/hooks/hub", "{}", hubHeader("{}", "star", "d3"), 202, `{"delivery":"d3","ignored":"event type not of interest"}`},
		{"a ping", "/hooks/hub", "{}", hubHeader("{}", "ping", "d4"), 200, `{"delivery":"d4","pong":true}`},
		{"a signature of another body", "/hooks/hub", other, hubHeader(pushOfWidgets, "push", "d5"), 401, `{"error":"delivery not authenticated`},
		{"unsigned", "/hooks/hub", other, nil, 401, `{"error":"delivery not authenticated`},
		{"an unknown source", "/hooks/nobody", other, hubHeader(other, "push", "d6"), 404, `{"error":"no such webhook source"}`},
		{"an unreadable payload", "/hooks/hub", "payload", hubHeader("payload", "push", "d7"), 400, `{"error":`},
		{"another method", "/hooks/hub", "", nil, 405, ""},
	} {
		method := "POST"
		if tc.status == 405 {
			method = "GET"
		}
		status, answer := do(t, method, url+tc.path, tc.body, tc.header)
		if status != tc.status || !strings.HasPrefix(answer, tc.answer) {
			t.Errorf("%s: %d %s, want %d %s", tc.name, status, answer, tc.status, tc.answer)
		}
	}
	for _, want := range []string{
		"msg=\"webhook handled\" source=hub event=push delivery=d1 repo=acme/widgets outcome=accepted changes=1",
		"delivery=d2 repo=acme/others outcome=ignored changes=0 why=\"nobody watches acme/others\"",
		"msg=\"webhook refused\" source=hub outcome=unauthorized",
	} {
		if strings.Count(log.String(), want) == 0 {
			t.Errorf("no line contains %s in\n%s", want, log)
		}
	}
	if text := log.String(); strings.Contains(text, "clone_url") || strings.Contains(text, hubSecret) {
		t.Errorf("the log contains the payload or the secret: %s", text)
	}
	text := metrics()
	for _, want := range []string{
		`lockstep_webhook_requests_total{forge="github",outcome="accepted"} 1`,
		`lockstep_webhook_requests_total{forge="github",outcome="duplicate"} 1`,
		`lockstep_webhook_requests_total{forge="github",outcome="ignored"} 2`,
		`lockstep_webhook_requests_total{forge="github",outcome="unauthorized"} 2`,
		`lockstep_webhook_requests_total{forge="",outcome="unknown"} 1`,
		`lockstep_webhook_duration_seconds_count{forge="github"} 8`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("missing metric %s", want)
		}
	}
}

func TestRejectedDeliveryMayBeRetried(t *testing.T) {
	t.Parallel()
	url, log, _ := serveHooks(t, intakeFunc(func(forge.Delivery) (intake.Outcome, error) {
		return intake.Outcome{}, errors.New("redis is away")
	}))
	req := testenv.Must(http.NewRequest("POST", url+"/hooks/hub", strings.NewReader(pushOfWidgets)))(t)
	req.Header = hubHeader(pushOfWidgets, "push", "d1")
	resp := testenv.Must(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	if !strings.Contains(log.String(), "redis is away") {
		t.Errorf("the log does not contain the reason: %s", log)
	}
}

func TestBodyLimits(t *testing.T) {
	t.Parallel()
	var size int
	url, _, _ := serveHooks(t, intakeFunc(func(d forge.Delivery) (intake.Outcome, error) {
		return intake.Outcome{Result: intake.Accepted, Delivery: d.ID, Changes: 1}, nil
	}))
	const limit = 25 << 20
	padded := func(n int) string { return pushOfWidgets + strings.Repeat(" ", n-len(pushOfWidgets)) }
	for name, tc := range map[string]struct {
		body    string
		chunked bool // without Content-Length
		status  int
	}{
		"64 KiB and a byte":  {padded(64<<10 + 1), false, 202},
		"the limit":          {padded(limit), false, 202},
		"the limit, chunked": {padded(limit), true, 202},
		"too long":           {padded(limit + 1), false, 413},
		"too long, chunked":  {padded(limit + 1), true, 413},
	} {
		t.Run(name, func(t *testing.T) {
			size = len(tc.body)
			var from io.Reader = strings.NewReader(tc.body)
			if tc.chunked {
				from = struct{ io.Reader }{from}
			}
			req := testenv.Must(http.NewRequest("POST", url+"/hooks/hub", from))(t)
			req.Header = hubHeader(tc.body, "push", "d1")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				if tc.status == 413 && tc.chunked {
					return // the server may close the connection early
				}
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != tc.status {
				t.Errorf("%d bytes: %d %s, want %d", size, resp.StatusCode, text, tc.status)
			}
		})
	}
}

func TestDeliveryWithoutIDGetsOne(t *testing.T) {
	t.Parallel()
	_, registry := registered(t)
	in, err := intake.New(intake.Config{Registry: registry, Sources: hubSources(t), RedisTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	url, _, _ := serveHooks(t, in)
	ids := map[string]bool{}
	for range 2 {
		status, text := do(t, "POST", url+"/hooks/hub", pushOfWidgets, hubHeader(pushOfWidgets, "push", ""))
		var answer struct {
			Delivery string
			Accepted int
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || status != 202 || answer.Accepted != 1 || answer.Delivery == "" {
			t.Fatalf("%d %s", status, text)
		}
		ids[answer.Delivery] = true
	}
	if len(ids) != 2 {
		t.Errorf("two deliveries without an ID get the same one: %v", ids)
	}
}

// TestWebhooksAreRecorded checks that the outcome of each request is recorded, and of an unverified one only why it was refused.
func TestWebhooksAreRecorded(t *testing.T) {
	t.Parallel()
	_, registry := registered(t)
	in, err := intake.New(intake.Config{Registry: registry, Sources: hubSources(t), RedisTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	records := make(chan intake.Received, 1)
	srv := httptest.NewServer(server.Handler(server.Config{
		Hooks:   &server.Hooks{Sources: hubSources(t), Intake: in, Record: func(r intake.Received) { records <- r }},
		Metrics: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler),
	}))
	t.Cleanup(srv.Close)
	unwatched := strings.ReplaceAll(pushOfWidgets, "widgets", "others")
	for name, tc := range map[string]struct {
		path, body string
		header     http.Header
		want       intake.Received
	}{
		"accepted": {"hub", pushOfWidgets, hubHeader(pushOfWidgets, "push", "d1"),
			intake.Received{Source: "hub", Forge: "github", Outcome: intake.Accepted, Event: "push", Delivery: "d1", Repo: "acme/widgets", Changes: 1, Verified: true}},
		"ignored": {"hub", unwatched, hubHeader(unwatched, "push", "d2"),
			intake.Received{Source: "hub", Forge: "github", Outcome: intake.Ignored, Event: "push", Delivery: "d2", Repo: "acme/others", Why: "nobody watches acme/others", Verified: true, Unwatched: true}},
		"refused": {"hub", pushOfWidgets + " ", hubHeader(pushOfWidgets, "push", "d3"),
			intake.Received{Source: "hub", Forge: "github", Outcome: "unauthorized"}},
		"unknown": {"none", pushOfWidgets, nil, intake.Received{Source: "none", Outcome: "unknown", Why: "no such webhook source"}},
	} {
		do(t, "POST", srv.URL+"/hooks/"+tc.path, tc.body, tc.header)
		got := <-records
		if tc.want.Outcome == "unauthorized" && got.Why != "" {
			tc.want.Why = got.Why
		}
		if got != tc.want {
			t.Errorf("%s: recorded %+v, want %+v", name, got, tc.want)
		}
	}
}
