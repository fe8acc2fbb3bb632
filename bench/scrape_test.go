package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/bench/scrape"
	"lockstep/bench/start"
	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/notify"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// commandCount counts the commands that a client sends, including those in pipelines.
type commandCount struct{ n atomic.Int64 }

func (a *commandCount) count(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if name := cmd.Name(); name != "hello" && name != "client" { // sent on connect
			a.n.Add(1)
		}
	}
}

func (a *commandCount) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *commandCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		a.count(cmd)
		return next(ctx, cmd)
	}
}

func (a *commandCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		a.count(cmds...)
		return next(ctx, cmds)
	}
}

// TestScrapeCostIsIndependentOfRepositories reads metrics and API pages with ten repositories and with a hundred thousand.
func TestScrapeCostIsIndependentOfRepositories(t *testing.T) {
	t.Parallel()
	many := 100_000
	if testing.Short() {
		many = 2_000
	}
	redisServer := redistest.StartReal(t)  // the embedded Redis returns all keys in one SCAN
	figures := map[int]map[string][2]int{} // by number of repositories, then by path: commands, and lines
	for _, n := range []int{10, many} {
		proctest.Must(0, scrape.WriteRepos(t.Context(), redisServer.Client(), events.DefaultNamespace, n))(t)
		proctest.Must(0, writeWatches(t.Context(), redisServer.Client(), n))(t)
		figures[n] = map[string][2]int{}
		for path, most := range map[string]int{
			"/metrics": 60, "/api/v1/streams": 30, "/api/v1/dead?limit=5": 10,
			"/api/v1/repos?limit=5": 60, "/api/v1/repos?limit=5&prefix=known/repo-00000": 200, "/api/v1/watches?limit=5": 110,
		} {
			handler, count := newHandler(t, redisServer) // new: nothing is cached
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil))
			if w.Code != http.StatusOK {
				t.Fatalf("%s: %d %s", path, w.Code, w.Body)
			}
			commands := int(count.n.Load())
			figures[n][path] = [2]int{commands, strings.Count(w.Body.String(), "\n")}
			if commands > most {
				t.Errorf("%s sends %d commands to Redis with %d repositories, want at most %d", path, commands, n, most)
			}
		}
	}
	few, all := figures[10]["/metrics"], figures[many]["/metrics"]
	if few != all || all[1] > 1000 {
		t.Errorf("metrics: %v commands and lines with ten repositories, %v with %d; want the same, and at most 1,000 lines", few, all, many)
	}
	t.Logf("commands and lines: %v", figures)
}

// writeWatches writes the registry's index and the polls of n watched repositories.
func writeWatches(ctx context.Context, client redis.UniversalClient, n int) error {
	namespace := events.DefaultNamespace
	const atOnce = 200
	for from := 0; from < n; from += atOnce {
		_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := from; i < min(from+atOnce, n); i++ {
				repo := fmt.Sprintf("known/repo-%06d", i)
				pipe.HSet(ctx, namespace.Watches()+"of:"+repo, "version", "v", "repo", repo,
					"docs ", `{"app":"docs","repo":"`+repo+`","url":"https://git.example.com/`+repo+`"}`)
				pipe.ZAdd(ctx, namespace.Watches()+"index", redis.Z{Member: repo})
				pipe.ZAdd(ctx, namespace.Poll(), redis.Z{Score: 1e15, Member: repo})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// newHandler returns the HTTP handler of a process and a counter of its Redis commands.
func newHandler(t *testing.T, redisServer *redistest.Server) (http.Handler, *commandCount) {
	t.Helper()
	client, namespace, count := redisServer.Client(), events.DefaultNamespace, &commandCount{}
	client.AddHook(count)
	metrics := telemetry.New()
	figures := telemetry.NewStreams(client, string(namespace), namespace.Changes(), namespace.Results())
	metrics.Export(figures)
	t.Cleanup(metrics.Outbox(func() (int64, error) { return notify.Waiting(t.Context(), client, namespace) }))
	return server.Handler(server.Config{
		Repos: state.NewStore(client, namespace), Watches: watch.NewRegistry(client, namespace), Streams: figures,
		Locks: proctest.Must(locking.NewInspector(locking.InspectorConfig{Redis: client, Prefix: namespace.Locks()}))(t),
		Dead:  proctest.Must(stream.NewDeadLetters(stream.DeadLettersConfig{Redis: client, Prefix: string(namespace), Dead: namespace.Dead()}))(t), Metrics: metrics.Handler(), Loopback: true, Log: slog.New(slog.DiscardHandler),
	}), count
}

// TestMetricsNameNoRepositoryAndNoApp syncs repositories for several apps, and searches the metrics for their names.
func TestMetricsNameNoRepositoryAndNoApp(t *testing.T) {
	git, redisServer := proctest.StartGit(t), redistest.Start(t)
	p := proctest.Start(t, "serve", "--listen", "127.0.0.1:0", "--redis", redisServer.URL(), "--root", t.TempDir())
	p.AwaitLog("msg=listening address=")
	_, after, _ := strings.Cut(p.Log.String(), "msg=listening address=")
	address, _, _ := strings.Cut(after, "\n")
	const repos = 5
	for i := range repos {
		repo := fmt.Sprintf("secretive/repo-%d", i)
		proctest.Must(git.Create(t.Context(), repo, map[string]string{"a": "1"}))(t)
		for _, name := range []string{"app-one", "app-two"} {
			change := proctest.Must(events.NewChange(events.Change{URL: git.URL(repo), App: name}))(t)
			proctest.Must(0, app.PublishChange(t.Context(), redisServer.Client(), events.DefaultNamespace, change))(t)
		}
	}
	missing := proctest.Must(events.NewChange(events.Change{URL: git.URL("secretive/none"), App: "app-one"}))(t)
	proctest.Must(0, app.PublishChange(t.Context(), redisServer.Client(), events.DefaultNamespace, missing))(t)
	proctest.AwaitResults(t, redisServer.Client(), 2*repos)
	text := proctest.Must(scrape.Scrape(t.Context(), address))(t)
	for _, name := range []string{"secretive", "app-one", "app-two", "refs/heads"} {
		if strings.Contains(text, name) {
			t.Errorf("metrics name %s", name)
		}
	}
	if n := scrape.CountSeries(text); n < 100 || n > 1000 {
		t.Errorf("%d series, want some, and at most 1,000", n)
	}
}

func TestBenchScrapeAndBenchStartReport(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t)
	stdout, stderr, code := runProcess(t, "scrape", "--redis", server.URL(), "--repos", "50", "--scrapes", "10", "--rounds", "1",
		"--duration", "1s", "--connections", "2", "--json")
	var scraped scrape.Report
	if err := json.Unmarshal([]byte(stdout), &scraped); err != nil || code != term.ExitDone {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	if scraped.Series < 100 || scraped.Asks < 1 || len(scraped.Once) != 1 || scraped.Once[0].PerSecond <= 0 || scraped.Unwatched[0].Each <= 0 {
		t.Errorf("%+v; want figures", scraped)
	}
	stdout, stderr, code = runProcess(t, "start", "--repos", "3", "--starts", "2", "--json")
	var started start.Report
	if err := json.Unmarshal([]byte(stdout), &started); err != nil || code != term.ExitDone {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	if len(started.Took) != 2 || started.P50 <= 0 || started.Max < started.P50 {
		t.Errorf("%+v; want figures", started)
	}
	if _, stderr, code := runProcess(t, "scrape", "--scrapes", "0"); code != term.ExitUsage {
		t.Errorf("no scrapes: exit code %d: %s", code, stderr)
	}
}
