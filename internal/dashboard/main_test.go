package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/changes"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
	"lockstep/internal/logtest"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
	"lockstep/locking"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const token = "t0ken-of-the-api"

// desk is a dashboard with a private Redis, mounted in a test server.
type desk struct {
	t      *testing.T
	redis  *redistest.Server
	client redis.UniversalClient
	board  *Dashboard
	stop   context.CancelFunc
	url    string
	log    *logtest.Buffer
}

func startDesk(t *testing.T, change func(*Config)) *desk {
	t.Helper()
	d := &desk{t: t, redis: redistest.Start(t, "--appendonly", "yes"), log: &logtest.Buffer{}}
	d.client = d.redis.Client()
	return d.open(change)
}

// open starts a dashboard on d.redis.
func (d *desk) open(change func(*Config)) *desk {
	d.t.Helper()
	namespace := events.DefaultNamespace
	set := cells.Single(d.client, cells.Member{Namespace: namespace})
	states := state.NewStore(d.client, namespace)
	cfg := Config{
		Redis: d.client, Results: namespace.Results(), Changes: namespace.Changes(), Group: "workers",
		Leases: &operate.Leases{Cells: set}, Letters: &operate.Letters{Cells: set}, Repos: &operate.Repos{Cells: set}, Activities: states.Activities, Watches: &operate.Watches{Cells: set},
		Outboxes: &operate.Outboxes{Cells: set}, Workers: &operate.Workers{Cells: set}, Outcomes: &operate.Results{Cells: set},
		Streams: telemetry.NewStreams(d.client, string(namespace), namespace.Changes(), namespace.Results()),
		Hosts:   telemetry.NewHosts(hosts.Reader{Redis: d.client, Prefix: string(namespace)}),
		Guard:   server.Guard{Token: fixed(token), Loopback: true}, Realm: string(namespace), Version: "v1", Log: slog.New(slog.NewTextHandler(d.log, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	var err error
	if d.board, err = New(ctx, cfg); err != nil {
		d.t.Fatal(err)
	}
	srv := httptest.NewServer(server.Handler(server.Config{
		Dashboard: d.board, Token: cfg.Guard.Token, Metrics: http.NotFoundHandler(), Log: cfg.Log,
	}))
	d.url = srv.URL
	d.t.Cleanup(func() {
		stop()
		d.board.Wait()
		srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return d
}

// visit sends one request without following redirects.
func (d *desk) visit(method, path string, form url.Values, header http.Header) (*http.Response, string) {
	d.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req := testenv.Must(http.NewRequest(method, d.url+path, body))(d.t)
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, values := range header {
		req.Header[name] = values
	}
	if host := header.Get("Host"); host != "" {
		req.Host = host
	}
	resp := testenv.Must(http.DefaultTransport.RoundTrip(req))(d.t)
	defer resp.Body.Close()
	text := testenv.Must(io.ReadAll(resp.Body))(d.t)
	return resp, string(text)
}

func (d *desk) page(path string, header http.Header) string {
	d.t.Helper()
	resp, text := d.visit("GET", path, nil, header)
	if resp.StatusCode != http.StatusOK {
		d.t.Fatalf("GET %s: %d %s", path, resp.StatusCode, text)
	}
	return text
}

var bearer = http.Header{"Authorization": {"Bearer " + token}}

// logIn returns the cookie and the CSRF token of a new session.
func (d *desk) logIn() (cookie http.Header, csrf string) {
	d.t.Helper()
	resp, text := d.visit("POST", "/dashboard/login", url.Values{"token": {token}, "next": {"/dashboard/leases"}}, nil)
	if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/dashboard/leases" || len(resp.Cookies()) != 1 {
		d.t.Fatalf("login: %d %v %s", resp.StatusCode, resp.Header, text)
	}
	cookie = http.Header{"Cookie": {resp.Cookies()[0].Name + "=" + resp.Cookies()[0].Value}}
	return cookie, csrfOf(d.t, d.page("/", cookie))
}

// csrfOf returns the CSRF token of a page's forms.
func csrfOf(t *testing.T, page string) string {
	t.Helper()
	_, after, ok := strings.Cut(page, `name="csrf" value="`)
	csrf, _, _ := strings.Cut(after, `"`)
	if !ok || csrf == "" {
		t.Fatalf("the page has no form: %s", page)
	}
	return csrf
}

// lease acquires a lease as the given worker.
func (d *desk) lease(key, worker, job string) *locking.Lease {
	d.t.Helper()
	locker, err := locking.New(locking.Config{Redis: d.client, Prefix: events.DefaultNamespace.Locks(), Worker: worker})
	if err != nil {
		d.t.Fatal(err)
	}
	lease := testenv.Must(locker.Acquire(d.t.Context(), locking.Request{Key: key, Job: job, Operation: "sync"}))(d.t)
	d.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = lease.Release(ctx) // fails if the test released it by force
		_ = locker.Close(ctx)
	})
	return lease
}

// settle adds a result of a change queued delay ago.
func (d *desk) settle(result events.Result, delay time.Duration) (entry string) {
	d.t.Helper()
	result.ID, result.Deliveries = fmt.Sprintf("job/%d-0/1-abc", time.Now().Add(-delay).UnixMilli()), []string{"job"}
	if result.Time.IsZero() {
		result.Time = time.Now()
	}
	msg := testenv.Must(changes.ResultMessage(result))(d.t)
	fields, err := stream.Fields(msg)
	if err != nil {
		d.t.Fatal(err)
	}
	entry, err = d.client.XAdd(d.t.Context(), &redis.XAddArgs{Stream: events.DefaultNamespace.Results(), Values: fields}).Result()
	if err != nil {
		d.t.Fatal(err)
	}
	return entry
}

func synced(t *testing.T, repo string) events.Result {
	t.Helper()
	path := testenv.Must(events.ParseRepoPath(repo))(t)
	ref := testenv.Must(events.ParseRef("main"))(t)
	return events.Result{Type: events.ResultSynced, Source: "/lockstep/worker/w1", Repo: path, Ref: ref, App: "docs", After: strings.Repeat("a1", 20), Took: 20 * time.Millisecond}
}

// bury adds a dead letter of an entry with the given fields.
func (d *desk) bury(reason, text string, fields map[string]string) (id string) {
	d.t.Helper()
	values := []any{"reason", reason, "error", text, "attempts", "3", "stream", events.DefaultNamespace.Changes(),
		"group", "workers", "consumer", "w1", "entry", "1-0", "at", fmt.Sprint(time.Now().UnixMilli())}
	for name, value := range fields {
		values = append(values, "original:"+name, value)
	}
	id, err := d.client.XAdd(d.t.Context(), &redis.XAddArgs{Stream: events.DefaultNamespace.Dead(), Values: values}).Result()
	if err != nil {
		d.t.Fatal(err)
	}
	return id
}

// ask sends a request to a host, which is answered with the status unless it is 0.
func (d *desk) ask(host, repo, credential string, status int) {
	d.t.Helper()
	limiter := testenv.Must(hosts.New(hosts.Config{Redis: d.client, Prefix: string(events.DefaultNamespace)}))(d.t)
	job := limiter.Job(repo, false)
	defer job.Leave(d.t.Context())
	done, err := job.With(credential).Acquire(d.t.Context(), host)
	if err == nil && status != 0 {
		done(wire.Answer{Status: status, Header: http.Header{"Retry-After": {"60"}}})
	}
}

// followed is a client's event stream.
type followed struct {
	t      *testing.T
	resp   *http.Response
	events chan part
	cancel context.CancelFunc
}

func (d *desk) follow(query string, header http.Header) *followed {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req := testenv.Must(http.NewRequestWithContext(ctx, "GET", d.url+"/dashboard/events?"+query, nil))(d.t)
	for name, values := range header {
		req.Header[name] = values
	}
	resp := testenv.Must(http.DefaultTransport.RoundTrip(req))(d.t)
	f := &followed{t: d.t, resp: resp, events: make(chan part, 1000), cancel: cancel}
	read := make(chan struct{})
	go func() { defer close(read); f.read() }()
	d.t.Cleanup(func() { cancel(); resp.Body.Close(); <-read })
	return f
}

// read parses the stream as a browser does.
func (f *followed) read() {
	defer close(f.events)
	var p part
	var rest []byte
	buffer := make([]byte, 4096)
	for {
		n, err := f.resp.Body.Read(buffer)
		if err != nil {
			return
		}
		rest = append(rest, buffer[:n]...)
		for {
			line, after, ok := strings.Cut(string(rest), "\n")
			if !ok {
				break
			}
			rest = []byte(after)
			switch {
			case strings.HasPrefix(line, "event: "):
				p.name = line[7:]
			case strings.HasPrefix(line, "data: "):
				p.content += line[6:] + "\n"
			case line == "" && p.name != "":
				f.events <- p
				p = part{}
			}
		}
	}
}

// await returns the next part with the name whose content contains the text.
func (f *followed) await(name, text string) part {
	f.t.Helper()
	limit := time.After(30 * time.Second)
	for {
		select {
		case p, ok := <-f.events:
			if !ok {
				f.t.Fatalf("the stream ended without %s: %s", name, text)
			}
			if p.name == name && strings.Contains(p.content, text) {
				return p
			}
		case <-limit:
			f.t.Fatalf("no part %s with %q", name, text)
		}
	}
}

// awaitEnd waits for the stream to end.
func (f *followed) awaitEnd() {
	f.t.Helper()
	limit := time.After(30 * time.Second)
	for {
		select {
		case _, ok := <-f.events:
			if !ok {
				return
			}
		case <-limit:
			f.t.Fatal("the stream does not end")
		}
	}
}

func eventually(t *testing.T, ok func() bool, what string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("timed out waiting until %s", what)
}

func (d *desk) held(key string) bool {
	d.t.Helper()
	repo := testenv.Must(events.ParseRepoPath(key))(d.t)
	lease := testenv.Must(d.board.cfg.Leases.Get(d.t.Context(), "", repo))(d.t)
	return lease.Held
}

// awaitFree waits until the lease is free: a forced release keeps it reserved for a moment.
func (d *desk) awaitFree(key string) {
	d.t.Helper()
	eventually(d.t, func() bool { return !d.held(key) }, key+" is free")
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text := testenv.Must(json.Marshal(v))(t)
	return string(text)
}

// fixed returns a token that does not change.
func fixed(token string) func() string { return func() string { return token } }
