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
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
)

func startRepos(t *testing.T) (url string, redisServer *redistest.Server) {
	t.Helper()
	redisServer = redistest.Start(t)
	client := redisServer.Client()
	srv := httptest.NewServer(documented(t, server.Config{
		Repos: reposOf(client), Leases: leasesOf(client), Metrics: telemetry.New().Handler(),
		Log: slog.New(slog.DiscardHandler),
	}))
	t.Cleanup(srv.Close)
	return srv.URL, redisServer
}

func TestShowRepository(t *testing.T) {
	t.Parallel()
	url, redisServer := startRepos(t)
	head := strings.Repeat("abc0", 10)
	open := time.Now().Add(time.Hour).Truncate(time.Millisecond).UTC()
	answered := time.Date(2026, 11, 21, 1, 2, 4, 0, time.UTC)
	err := redisServer.Client().HSet(context.Background(), "lockstep:{0}:repo:acme/widgets", "repo", "Acme/Widgets", "fence", 7,
		"synced", "2026-11-21T01:02:03Z", "answered", "2026-11-21T01:02:04Z", "url", "https://example.com/acme/widgets", "head:refs/heads/main", head, "given:refs/heads/main:docs", head,
		"trouble", fmt.Sprintf(`{"all":{"repo":{"scope":"repo","operation":"sync","class":"network","job":"j1","failures":6,"at":%q,"until":%q}}}`, open.Format(time.RFC3339Nano), open.Format(time.RFC3339Nano))).Err()
	if err != nil {
		t.Fatal(err)
	}
	hold(t, redisServer)
	var repo operate.Repo
	status, text := do(t, "GET", url+"/api/v1/repos/ACME/widgets", "", nil)
	if err := json.Unmarshal([]byte(text), &repo); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	c := repo.Circuit
	if repo.Repo != "Acme/Widgets" || repo.Heads["refs/heads/main"] != head || len(repo.Last) != 1 || repo.Last[0].App != "docs" || repo.Last[0].State != operate.LastFailing || !repo.Lock.Held ||
		!repo.Answered.Equal(answered) || c.Phase != state.CircuitOpen || c.Failures != 6 || c.Trips != 2 || !c.OpenUntil.Equal(open) {
		t.Errorf("%s", text)
	}
	var list struct{ Repos []operate.RepoSummary }
	status, text = do(t, "GET", url+"/api/v1/repos", "", nil)
	if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK || len(list.Repos) != 1 || list.Repos[0].Circuit.Phase != state.CircuitOpen {
		t.Errorf("list: %d %s", status, text)
	}
}

func TestListRepositories(t *testing.T) {
	t.Parallel()
	url, redisServer := startRepos(t)
	pipe := redisServer.Client().Pipeline()
	for n := range 60 {
		pipe.HSet(context.Background(), fmt.Sprintf("lockstep:{0}:repo:acme/r%d", n), "repo", fmt.Sprintf("acme/r%d", n))
	}
	pipe.HSet(context.Background(), "lockstep:{0}:repo:zoo/x", "repo", "zoo/x")
	testenv.Must(pipe.Exec(context.Background()))(t)
	found := map[string]bool{}
	for after, pages := "0", 0; after != ""; pages++ {
		if pages > 100 {
			t.Fatal("the list does not end")
		}
		status, text := do(t, "GET", url+"/api/v1/repos?limit=10&prefix=acme/&after="+after, "", nil)
		var list struct {
			Repos []operate.RepoSummary
			Next  string
		}
		if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
		for _, r := range list.Repos {
			found[r.Repo] = true
		}
		after = list.Next
	}
	if len(found) != 60 || found["zoo/x"] {
		t.Errorf("%d repositories, want the 60 of acme", len(found))
	}
}

func TestInvalidRepositoryRequests(t *testing.T) {
	t.Parallel()
	url, _ := startRepos(t)
	for path, want := range map[string]int{
		"/acme/other": http.StatusNotFound, "/acme": http.StatusBadRequest, "?limit=0": http.StatusBadRequest,
		"?limit=1001": http.StatusBadRequest, "?limit=x": http.StatusBadRequest, "?after=x": http.StatusBadRequest,
	} {
		if status, text := do(t, "GET", url+"/api/v1/repos"+path, "", nil); status != want {
			t.Errorf("%s: %d %s, want %d", path, status, text, want)
		}
	}
}

// TestStatesOfARepository shows what workers stored of a repository, but no errors, which name hosts and credentials.
func TestStatesOfARepository(t *testing.T) {
	t.Parallel()
	url, redisServer := startRepos(t)
	const left = `[{"app":"ci","ref":"refs/heads/*","reason":"max-refs","max_refs":100,"count":12,"refs":["refs/heads/old"]},` +
		`{"app":"ci","ref":"refs/heads/*","reason":"name","count":1,"refs":["refs/heads/long"]}]`
	err := redisServer.Client().HSet(context.Background(), "lockstep:{0}:repo:acme/widgets", "repo", "acme/widgets", "leftout", left, "missing", "refs/heads/main",
		"missing:refs/heads/main", `{"ref":"refs/heads/main","commit":"`+strings.Repeat("1", 40)+`","at":"2026-11-23T01:02:03Z","count":12,
			"submodules":[{"path":"libs/a","class":"auth","error":"git.example.com refused it"}]}`).Err()
	if err != nil {
		t.Fatal(err)
	}
	for path, wants := range map[string][]string{
		"/acme/widgets": {`"left_out":` + left, `"missing":["refs/heads/main"]`, `"count":12`, `{"path":"libs/a","class":"auth","error":""}`},
		"":              {`"left_out":` + left, `"missing":["refs/heads/main"]`},
	} {
		_, text := do(t, "GET", url+"/api/v1/repos"+path, "", nil)
		for _, want := range wants {
			if !strings.Contains(text, want) || strings.Contains(text, "git.example.com") {
				t.Errorf("%q: no %s, or an error, in %s", path, want, text)
			}
		}
	}
}

// TestFailuresOfARepository checks the list and the state of a repository that never synced: only the operator reads the errors.
func TestFailuresOfARepository(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t)
	client := redisServer.Client()
	srv := httptest.NewServer(documented(t, server.Config{
		Repos: reposOf(client), Leases: leasesOf(client), Metrics: telemetry.New().Handler(), Log: slog.New(slog.DiscardHandler), Token: fixed("secret"),
	}))
	t.Cleanup(srv.Close)
	at := time.Now().UTC().Truncate(time.Second)
	times := fmt.Sprintf(`"at":%q,"next":%q`, at.Format(time.RFC3339), at.Add(time.Second).Format(time.RFC3339))
	client.HSet(context.Background(), "lockstep:{0}:repo:acme/widgets", "trouble", `{"repo":"Acme/Widgets","all":{"credential:robot:docs":{"scope":"credential",`+
		`"app":"docs","operation":"sync","class":"auth","error":"host.internal refuses","attempts":2,"job":"j1","credential":"robot",`+times+`}}}`)
	client.ZAdd(context.Background(), "lockstep:{0}:poll", redis.Z{Score: 5000, Member: "acme/widgets"})
	for _, path := range []string{"/api/v1/repos", "/api/v1/repos/acme/widgets"} {
		for _, header := range []http.Header{nil, {"Authorization": {"Bearer secret"}}} {
			status, text := do(t, "GET", srv.URL+path, "", header)
			for part, want := range map[string]bool{
				`"repo":"Acme/Widgets"`: true, `"class":"auth"`: true, times: true, `"robot"`: header != nil,
				`"next_poll":"1970-01-01T00:00:05Z"`: strings.HasSuffix(path, "widgets"), "host.internal": header != nil,
			} {
				if status != http.StatusOK || strings.Contains(text, part) != want {
					t.Errorf("%s with %v: %d, %s: want %v\n%s", path, header, status, part, want, text)
				}
			}
		}
	}
}
