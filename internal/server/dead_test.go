package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
)

// startAdmin serves only dead letters and streams.
func startAdmin(t *testing.T) (url string, redisServer *redistest.Server) {
	t.Helper()
	redisServer = redistest.Start(t)
	client := redisServer.Client()
	namespace := events.DefaultNamespace
	srv := httptest.NewServer(documented(t, server.Config{
		Letters: &operate.Letters{Cells: cells.Single(client, cells.Member{Namespace: namespace})},
		Streams: telemetry.NewStreams(client, string(namespace), namespace.Changes(), namespace.Results()),
		Token:   fixed("t0ken"), Metrics: telemetry.New().Handler(), Log: slog.New(slog.DiscardHandler),
	}))
	t.Cleanup(srv.Close)
	return srv.URL, redisServer
}

var auth = http.Header{"Authorization": {"Bearer t0ken"}}

// bury adds a letter as the settle script does.
func bury(t *testing.T, client redis.UniversalClient, reason string, original ...string) (id string) {
	t.Helper()
	values := []string{"reason", reason, "error", "remote says no", "attempts", "8", "stream", events.DefaultNamespace.Changes(),
		"group", "workers", "entry", "1-1", "consumer", "w1", "at", "1795223511284"}
	for i := 0; i < len(original); i += 2 {
		values = append(values, "original:"+original[i], original[i+1])
	}
	id, err := client.XAdd(context.Background(), &redis.XAddArgs{Stream: events.DefaultNamespace.Dead(), Values: values}).Result()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// letter gets one letter.
func letter(t *testing.T, url, id string) operate.Letter {
	t.Helper()
	status, text := do(t, "GET", url+"/api/v1/dead/"+id, "", auth)
	var l operate.Letter
	if err := json.Unmarshal([]byte(text), &l); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	return l
}

func TestUnreadableLetterShowsNoSecrets(t *testing.T) {
	t.Parallel()
	url, redisServer := startAdmin(t)
	client := redisServer.Client()
	good := letter(t, url, bury(t, client, "attempts used up", "repo", "acme/widgets", "url", "https://example.com/acme/widgets.git", "id", "c1"))
	if good.Repo != "acme/widgets" || good.Job != "c1" || good.Type != string(events.ChangePushed) || good.Attempts != 8 || good.Stream != "lockstep:{0}:changes" ||
		good.At.UnixMilli() != 1795223511284 || !strings.Contains(string(good.Event), `"url":"https://example.com/acme/widgets.git"`) {
		t.Errorf("%+v", good)
	}
	id := bury(t, client, "malformed", "repo", "acme/widgets", "url", "https://u:hunter2@example.com/acme/widgets.git")
	bad := letter(t, url, id)
	if bad.Repo != "" || bad.Event != nil || bad.Fields["url"] != 46 || bad.Fields["repo"] != 12 {
		t.Errorf("%+v", bad)
	}
	for _, path := range []string{"/api/v1/dead", "/api/v1/dead/" + id} {
		if _, text := do(t, "GET", url+path, "", auth); strings.Contains(text, "hunter2") {
			t.Errorf("%s shows a password: %s", path, text)
		}
	}
}

func TestListDeadLetters(t *testing.T) {
	t.Parallel()
	url, redisServer := startAdmin(t)
	client := redisServer.Client()
	const widgets, gadgets = "https://example.com/acme/widgets.git", "https://example.com/acme/widgets2.git"
	ids := map[string]string{
		"1": bury(t, client, "attempts used up", "repo", "acme/widgets", "url", widgets),
		"2": bury(t, client, "attempts used up", "repo", "acme/widgets2", "url", gadgets),
		"3": bury(t, client, "malformed", "repo", "ACME/Widgets"),
		"4": bury(t, client, "malformed", "payload", `{"repo":"acme/widgets"`),
		"5": bury(t, client, "malformed", "repo", "acme/widgets2"),
	}
	for query, want := range map[string]string{
		"":                     "54321",
		"?order=oldest":        "12345",
		"?limit=2":             "54",
		"?after=" + ids["3"]:   "21",
		"?reason=malformed":    "543",
		"?repo=Acme/Widgets":   "431",
		"?repo=acme/widgets2":  "52",
		"?repo=acme/other":     "",
		"?limit=1001":          "400",
		"?order=random":        "400",
		"?repo=acme/..":        "400",
		"?after=yesterday":     "400",
		"?reason=no%20such":    "",
		"?repo=a/b&limit=none": "400",
	} {
		status, text := do(t, "GET", url+"/api/v1/dead"+query, "", nil)
		var list struct {
			Letters []operate.Letter
			Next    string
		}
		_ = json.Unmarshal([]byte(text), &list)
		got := ""
		if status != http.StatusOK {
			got = fmt.Sprint(status)
		}
		for _, l := range list.Letters {
			for n, id := range ids {
				if id == l.ID {
					got += n
				}
			}
		}
		if got != want {
			t.Errorf("%q: %s, want %s: %s", query, got, want, text)
		}
		if query == "?limit=2" && list.Next != ids["4"] {
			t.Errorf("next %s, want %s", list.Next, ids["4"])
		}
	}
}

func TestDeadLettersAreRetriedAndDropped(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url, redisServer := startAdmin(t)
	client := redisServer.Client()
	whole := bury(t, client, "r", "repo", "acme/widgets", "url", "https://example.com/acme/widgets.git")
	empty := bury(t, client, "r")
	base := url + "/api/v1/dead/"
	for _, tc := range []struct {
		name, method, path string
		status             int
	}{
		{"a retry", "POST", whole + "/retry", http.StatusOK},
		{"a second retry", "POST", whole + "/retry", http.StatusNotFound},
		{"a retry without fields", "POST", empty + "/retry", http.StatusConflict},
		{"a retry with a bad ID", "POST", "x/retry", http.StatusBadRequest},
		{"a drop", "DELETE", empty, http.StatusOK},
		{"a second drop", "DELETE", empty, http.StatusNotFound},
		{"a drop with a bad ID", "DELETE", "x", http.StatusBadRequest},
		{"get with a bad ID", "GET", "x", http.StatusBadRequest},
		{"get of a retried letter", "GET", whole, http.StatusNotFound},
	} {
		if status, text := do(t, tc.method, base+tc.path, "", auth); status != tc.status || !json.Valid([]byte(text)) {
			t.Errorf("%s: %d %s, want %d", tc.name, status, text, tc.status)
		}
	}
	changes, err := client.XRange(ctx, events.DefaultNamespace.Changes(), "-", "+").Result()
	if err != nil || len(changes) != 1 || changes[0].Values["repo"] != "acme/widgets" {
		t.Errorf("changes %v, %v; want the retried one", changes, err)
	}
}

func TestStreamsShowLag(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url, redisServer := startAdmin(t)
	client := redisServer.Client()
	changes := events.DefaultNamespace.Changes()
	client.XGroupCreateMkStream(ctx, changes, "workers", "0")
	client.XAdd(ctx, &redis.XAddArgs{Stream: changes, ID: "1-0", Values: []string{"a", "1"}})
	bury(t, client, "r")
	status, text := do(t, "GET", url+"/api/v1/streams", "", nil)
	var list struct {
		Streams []server.Stream
		Dead    int64
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	if len(list.Streams) != 2 || list.Dead != 1 {
		t.Fatalf("%s", text)
	}
	s := list.Streams[0]
	if s.Stream != changes || s.Length != 1 || s.First != "1-0" || s.Last != "1-0" || len(s.Groups) != 1 {
		t.Fatalf("%s", text)
	}
	if g := s.Groups[0]; g.Group != "workers" || g.Lag != 1 || g.Pending != 0 || g.OldestMS <= 0 {
		t.Errorf("%s", text)
	}
	if s := list.Streams[1]; s.Length != 0 || s.Groups == nil {
		t.Errorf("missing stream: %s", text)
	}
}

func TestRedisErrorsAreNotExposed(t *testing.T) {
	t.Parallel()
	url, redisServer := startAdmin(t)
	if err := redisServer.Client().Set(context.Background(), events.DefaultNamespace.Dead(), "not a stream", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/api/v1/dead", "/api/v1/dead/1-1"} {
		if status, text := do(t, "GET", url+path, "", auth); status != http.StatusServiceUnavailable || strings.Contains(text, "WRONGTYPE") {
			t.Errorf("%s: %d %s, want 503", path, status, text)
		}
	}
}

func TestLetterOfSeveralCellsNeedsACell(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	directory, err := cells.OpenOrNew(t.Context(), client)
	for _, name := range []string{"eu-1", "eu-2"} {
		if _, failed := directory.Add(t.Context(), name, "", 0); failed != nil || err != nil {
			t.Fatal(failed, err)
		}
		client.XAdd(t.Context(), &redis.XAddArgs{Stream: cells.PrefixOf(name).Dead(), ID: "5-0", Values: []string{"reason", "r"}})
	}
	handler := documented(t, server.Config{Letters: &operate.Letters{Cells: cells.All(client, directory)}, Token: fixed("t0ken"), Metrics: http.NotFoundHandler()})
	for request, want := range map[string]int{
		"GET 5-0": http.StatusConflict, "POST 5-0/retry": http.StatusConflict, "DELETE 5-0": http.StatusConflict, "GET 5-0?cell=eu-1": http.StatusOK,
	} {
		method, path, _ := strings.Cut(request, " ")
		w, r := httptest.NewRecorder(), httptest.NewRequest(method, "/api/v1/dead/"+path, nil)
		r.Header = auth
		if handler.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%s: %d %s, want %d", request, w.Code, w.Body, want)
		}
	}
}

func TestRetryAllDeadOfAHost(t *testing.T) {
	t.Parallel()
	url, redisServer := startAdmin(t)
	client := redisServer.Client()
	for i, host := range []string{"git.example", "git.example", "other.example"} {
		change, err := events.NewChange(events.Change{ID: fmt.Sprint("c", i), URL: "https://" + host + "/acme/widgets.git"})
		if err != nil {
			t.Fatal(err)
		}
		payload := testenv.Must(json.Marshal(change))(t)
		bury(t, client, "attempts used up", "_watermill_message_uuid", change.ID, "payload", string(payload))
	}
	if status, text := do(t, "GET", url+"/api/v1/dead?host=git.example", "", nil); status != http.StatusOK ||
		strings.Count(text, `"host":"git.example"`) != 2 || strings.Contains(text, "remote says no") || strings.Contains(text, "other") {
		t.Errorf("%d %s, want two letters, without their errors", status, text)
	}
	if _, text := do(t, "GET", url+"/api/v1/dead", "", auth); strings.Count(text, "remote says no") != 3 {
		t.Errorf("with the token: %s", text)
	}
	if status, _ := do(t, "POST", url+"/api/v1/dead/retry?host=git.example", "", nil); status != http.StatusUnauthorized {
		t.Errorf("without the token: %d", status)
	}
	if _, text := do(t, "POST", url+"/api/v1/dead/retry?host=git.example&class=auth", "", auth); !strings.HasPrefix(text, `{"retried":[],"refused":[]}`) {
		t.Errorf("of another class: %s", text)
	}
	if status, _ := do(t, "POST", url+"/api/v1/dead/retry?limit=x&all=true", "", auth); status != http.StatusBadRequest {
		t.Errorf("with an invalid limit: %d", status)
	}
	status, text := do(t, "POST", url+"/api/v1/dead/retry?host=git.example", "", auth)
	if left := client.XLen(t.Context(), events.DefaultNamespace.Dead()).Val(); status != http.StatusOK || strings.Count(text, `"entry":`) != 2 || left != 1 {
		t.Errorf("%d %s, %d left, want two retried and one left", status, text, left)
	}
	for _, query := range []string{"", "?all=false", "?limit=5", "?hots=git.example"} {
		if status, text := do(t, "POST", url+"/api/v1/dead/retry"+query, "", auth); status != http.StatusBadRequest {
			t.Errorf("with %q: %d %s", query, status, text)
		}
	}
	if status, text := do(t, "POST", url+"/api/v1/dead/retry?all=true", "", auth); status != http.StatusOK || strings.Count(text, `"entry":`) != 1 {
		t.Errorf("all: %d %s", status, text)
	}
}
