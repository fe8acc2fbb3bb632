package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
	"lockstep/internal/feed"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/testenv"
)

func newFeed(t *testing.T, redisServer *redistest.Server, reading *server.Reading) *feed.Feed {
	t.Helper()
	blocking := redis.NewClient(&redis.Options{Addr: redisServer.Addr, MaxRetries: -1})
	results := testenv.Must(feed.New(feed.Config{
		Redis: redisServer.Client(), Reader: stream.NewReader(blocking), Sources: func() []feed.Source {
			return []feed.Source{{Namespace: events.DefaultNamespace, Audiences: reading.Reader.Audiences}}
		}, Removed: reading.Tokens.Removed,
		Check: 20 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	}))(t)
	t.Cleanup(func() { results.Close(); blocking.Close() })
	return results
}

// settle adds a synced result of an app.
func (l *library) settle(app, repo, id string) {
	l.Helper()
	l.settleAs(events.Result{
		ID: id, Type: events.ResultSynced, App: app, Repo: testenv.Must(events.ParseRepoPath(repo))(l.T),
		Ref: testenv.Must(events.ParseRef("refs/heads/main"))(l.T), After: strings.Repeat("a", 40), Path: repo, Tree: repo + "~1",
	})
}

func (l *library) settleAs(r events.Result) {
	l.Helper()
	r.Source, r.Time = "/test", time.Now()
	fields := testenv.Must(stream.Fields(testenv.Must(changes.ResultMessage(r))(l.T)))(l.T)
	testenv.Must(0, l.client.XAdd(l.Context(), &redis.XAddArgs{Stream: events.DefaultNamespace.Results(), Values: fields}).Err())(l.T)
}

// events opens a stream and returns its response and what reads its first event, then its results: ID, type and data.
func (l *library) events(token, query string, header ...string) (*http.Response, func() [3]string) {
	l.Helper()
	r := testenv.Must(http.NewRequestWithContext(l.Context(), http.MethodGet, strings.TrimSuffix(l.url, "repos/")+"results"+query, nil))(l.T)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp := testenv.Must(http.DefaultClient.Do(r))(l.T)
	l.Cleanup(func() { resp.Body.Close() })
	in, begun := bufio.NewReader(resp.Body), false
	return resp, func() (e [3]string) {
		l.Helper()
		for {
			line := strings.TrimSuffix(testenv.Must(in.ReadString('\n'))(l.T), "\n")
			if line == "" && (!begun || e[1] != "") {
				begun = true
				return e
			}
			if name, value, ok := strings.Cut(line, ": "); ok {
				e[map[string]int{"id": 0, "event": 1, "data": 2}[name]] = value
			} else {
				e = [3]string{} // a heartbeat
			}
		}
	}
}

func TestResultsAreServerSentEvents(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.settle("docs", "acme/widgets", "before")
	resp, next := l.events(l.docs, "")
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" || !strings.Contains(resp.Header.Get("Cache-Control"), "no-store") {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	first := next()
	if first[0] == "" || first[1] != "" || first[2] != "" || strings.Contains(first[0], "acme") {
		t.Fatalf("%q, want the position", first)
	}
	l.settle("scan", "acme/secret", "foreign")
	l.settle("docs", "acme/widgets", "own")
	own := next()
	var document struct{ ID, Type, Subject string }
	if err := json.Unmarshal([]byte(own[2]), &document); err != nil || document.ID != "own" || own[1] != "synced" || document.Subject != "acme/widgets" {
		t.Fatalf("%q, %v", own, err)
	}
	idOf := func(e [3]string) string {
		document.ID = ""
		_ = json.Unmarshal([]byte(e[2]), &document)
		return document.ID
	}
	for name, request := range map[string][]string{
		"Last-Event-ID":              {"", "Last-Event-ID", first[0]},
		"cursor":                     {"?cursor=" + first[0]},
		"Last-Event-ID after cursor": {"?cursor=" + own[0], "Last-Event-ID", first[0]},
		"Last-Event-ID after from":   {"?from=start", "Last-Event-ID", first[0]},
	} {
		_, next := l.events(l.docs, request[0], request[1:]...)
		if e := next(); e[0] != first[0] || e[1] != "" {
			t.Errorf("%s: begins with %q", name, e)
		}
		if e := next(); idOf(e) != "own" || e[0] != own[0] {
			t.Errorf("%s: %q", name, e)
		}
	}
	_, oldest := l.events(l.docs, "?from=start")
	oldest()
	if e := oldest(); idOf(e) != "before" {
		t.Errorf("from=start: %q", e)
	}
	_, all := l.events("operator", "?from=start")
	all()
	for _, want := range []string{"before", "foreign", "own"} {
		if e := all(); idOf(e) != want {
			t.Errorf("operator: %q, want %s", e, want)
		}
	}
	results := events.DefaultNamespace.Results()
	testenv.Must(l.client.Del(t.Context(), results, results+":epoch").Result())(t)
	if e := next(); e[1] != "gone" || e[0] != "" {
		t.Errorf("%q, want gone", e)
	}
}

func TestRefusedStreams(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	url := strings.TrimSuffix(l.url, "repos/") + "results"
	_, first := l.events(l.docs, "")
	cursor := first()[0]
	for query, want := range map[string]int{
		"?cursor=x": http.StatusBadRequest, "?from=end": http.StatusBadRequest, "?from=start&cursor=" + cursor: http.StatusBadRequest,
		"?cursor=" + cursor + "A": http.StatusBadRequest, "?cursor=MSBBQkNERUZHSElKS0xNTk9QIDAtMCAw": http.StatusGone,
	} {
		resp, body := l.request(l.docs, url+query)
		var document struct{ Error, Cursor string }
		if err := json.Unmarshal([]byte(body), &document); err != nil || resp.StatusCode != want || document.Error == "" {
			t.Errorf("%s: %s %s, %v", query, resp.Status, body, err)
		}
		if want != http.StatusGone {
			continue
		}
		if _, next := l.events(l.docs, "?cursor="+document.Cursor); next()[0] != document.Cursor {
			t.Errorf("does not begin at %s", document.Cursor)
		}
	}
	for token, want := range map[string]int{"": http.StatusUnauthorized, "lockstep_x": http.StatusUnauthorized} {
		if resp, body := l.request(token, url); resp.StatusCode != want {
			t.Errorf("%q: %s %s", token, resp.Status, body)
		}
	}
	if resp, body := l.request(l.docs, url, "X-Forwarded-Proto", "http"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("over a network: %s %s", resp.Status, body)
	}
	r := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodHead, url, nil))(t)
	r.Header.Set("Authorization", "Bearer "+l.docs)
	resp := testenv.Must(http.DefaultClient.Do(r))(t)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("HEAD: %s %v", resp.Status, resp.Header)
	}
	refused := func(token, name string) {
		t.Helper()
		if resp, body := l.request(token, url); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %s %s", name, resp.Status, body)
		}
	}
	for range 6 { // of 8; two are open
		l.events(l.docs, "")
	}
	refused(l.docs, "nine streams of an app")
	for range 8 {
		l.events(l.scan, "")
	}
	refused("operator", "seventeen streams")
}

// TestStoppingEndsStreamsFirst stops a server with a stream and a request that takes longer.
func TestStoppingEndsStreamsFirst(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.sync("acme/widgets", "", "docs")
	listener := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener, l.cfg) }()
	l.url = "http://" + listener.Addr().String() + "/api/v1/repos/"
	resp, next := l.events(l.docs, "")
	next()
	busy := testenv.Must(net.Dial("tcp", listener.Addr().String()))(t)
	defer busy.Close()
	testenv.Must(busy.Write([]byte("POST /git/acme/widgets.git/git-upload-pack HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nAuthorization: Bearer " + l.docs + "\r\nContent-Type: application/x-git-upload-pack-request\r\nExpect: 100-continue\r\n\r\n")))(t)
	if line := testenv.Must(bufio.NewReader(busy).ReadString('\n'))(t); !strings.HasPrefix(line, "HTTP/1.1 100 ") { // sent when the handler reads the body
		t.Fatalf("%q, want 100 Continue", line)
	}
	stop()
	if n, err := resp.Body.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d bytes, %v; want the end", n, err)
	}
	select {
	case err := <-served:
		t.Fatalf("stopped before the other request ended: %v", err)
	default:
	}
	busy.Close()
	<-served
}

func TestFollowersReport(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	_, next := l.events(l.docs, "")
	cursor := next()[0]
	put := func(token, name, body string, header ...string) (int, string) {
		t.Helper()
		r := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodPut, strings.TrimSuffix(l.url, "repos/")+"followers/"+name, strings.NewReader(body)))(t)
		r.Header.Set("Authorization", "Bearer "+token)
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp := testenv.Must(http.DefaultClient.Do(r))(t)
		defer resp.Body.Close()
		return resp.StatusCode, string(testenv.Must(io.ReadAll(resp.Body))(t))
	}
	report := `{"cursor":"` + cursor + `","repos":50,"behind":3,"version":"v1"}`
	for _, tc := range []struct {
		token, name, body string
		want              int
	}{
		{l.docs, "node-1", report, 204},
		{l.docs, "node-1", report, 204},
		{"operator", "node-1", `{"cursor":"` + cursor + `","new":1}`, 204},
		{l.docs, "node-1", `[`, 400},
		{l.docs, "node%201", report, 400},
		{l.docs, "node-1", `{"cursor":"` + strings.Repeat(" ", 200_000) + `"}`, 413},
		{"wrong", "node-1", report, 401},
	} {
		if status, text := put(tc.token, tc.name, tc.body); status != tc.want {
			t.Errorf("%s %.60s: %d %s, want %d", tc.name, tc.body, status, text, tc.want)
		}
	}
	if status, text := put(l.docs, "node-1", report, "X-Forwarded-Proto", "http"); status != http.StatusForbidden {
		t.Errorf("in clear text: %d %s", status, text)
	}
	list := testenv.Must(l.cfg.Reading.Followers.List(t.Context()))(t)
	if len(list) != 2 || list[0].App != "docs" || list[0].Behind != 3 || list[1].App != "" {
		t.Errorf("%+v", list)
	}
	key := string(events.DefaultNamespace) + "followers:of:scan"
	fields := map[string]any{}
	for i := range 1000 {
		fields[fmt.Sprint("n", i)] = fmt.Sprintf("%d - {}", time.Now().UnixMilli())
	}
	testenv.Must(0, l.client.HSet(t.Context(), key, fields).Err())(t)
	if status, text := put(l.scan, "node-1", report); status != http.StatusTooManyRequests {
		t.Errorf("%d %s, want 429", status, text)
	}
}
