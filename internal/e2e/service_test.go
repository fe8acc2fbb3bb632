package e2e

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// load makes many pushes to many repositories, and publishes a change for each.
type load struct {
	repos, pushes int
	git           *gitserver.Server
	client        redis.UniversalClient
	heads         []string
}

func newLoad(t *testing.T, git *gitserver.Server, client redis.UniversalClient) *load {
	l := &load{repos: testenv.Soak(testenv.Form(10, 20), 50), pushes: testenv.Soak(testenv.Form(5, 10), 20), git: git, client: client}
	l.heads = make([]string, l.repos)
	return l
}

func (l *load) repo(i int) string { return fmt.Sprintf("acme/repo-%02d", i) }

// push makes all pushes, to four repositories at a time.
func (l *load) push(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := range l.repos {
		g.Go(func() error {
			for n := range l.pushes {
				files := map[string]string{"version": fmt.Sprint(n), "stays": "the same", fmt.Sprintf("new-%d", n): "x"}
				var commit string
				var err error
				if n == 0 {
					commit, err = l.git.Create(ctx, l.repo(i), files)
				} else {
					commit, err = l.git.Commit(ctx, l.repo(i), gitserver.Main, gitserver.Edit{Write: files})
				}
				if err != nil {
					return err
				}
				l.heads[i] = commit
				change, err := events.NewChange(events.Change{ID: uuid.NewString(), Source: "/test", URL: l.git.URL(l.repo(i)), After: commit})
				if err != nil {
					return err
				}
				if err := app.PublishChange(ctx, l.client, events.DefaultNamespace, change); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// assertDone waits for all results, and checks that each repository is at its remote's head, that each change has one
// result, and that nothing is pending or dead.
func (l *load) assertDone(t *testing.T, root string) {
	t.Helper()
	results := map[string]int{} // number of results by change ID
	for _, r := range proctest.AwaitResults(t, l.client, l.repos*l.pushes) {
		if r.Type != events.ResultSynced {
			t.Errorf("%s: %s %s", r.Repo, r.Type, r.Error)
		}
		for _, id := range r.Deliveries {
			results[id]++
		}
	}
	if len(results) != l.repos*l.pushes {
		t.Errorf("%d changes have results, want %d", len(results), l.repos*l.pushes)
	}
	for id, n := range results {
		if n != 1 {
			t.Errorf("change %s has %d results, want 1", id, n)
		}
	}
	for i := range l.repos {
		dir := filepath.Join(root, l.repo(i))
		if got := gitIn(t, dir, "rev-parse", "HEAD"); got != l.heads[i] {
			t.Errorf("%s is at %s, want its remote's head %s", l.repo(i), got, l.heads[i])
		}
		if dirty := gitIn(t, dir, "status", "--porcelain"); dirty != "" {
			t.Errorf("%s is not clean: %s", l.repo(i), dirty)
		}
	}
	proctest.AssertIdle(t, l.client)
}

func TestRepositoriesSyncInParallelWithOneFetchEach(t *testing.T) {
	t.Parallel()
	git, server, root := proctest.StartGit(t), redistest.Start(t), t.TempDir()
	l := newLoad(t, git, server.Client())
	for range 2 {
		proctest.Start(t, "serve", "--redis", server.URL(), "--root", root, "--log-level", "warn")
	}
	proctest.Must(0, l.push(context.Background()))(t)
	l.assertDone(t, root)
	for i := range l.repos {
		if most := git.Stats(l.repo(i)).MaxActive; most > 1 {
			t.Errorf("%s: %d concurrent fetches, want one", l.repo(i), most)
		}
	}
	if git.MaxRepos() < 2 {
		t.Error("repositories were fetched one after another, want in parallel")
	}
}

func TestServiceSurvivesRedisOutage(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	git, server, root := proctest.StartGit(t), redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always"), t.TempDir()
	client := server.Client()
	proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	server.Stop()
	p := proctest.Start(t, "serve", "--redis", server.URL(), "--root", root)
	p.AwaitLog("does not answer; start it, or name another with --redis")
	server.Restart()
	p.AwaitLog("worker takes changes")

	server.Stop()
	proctest.Eventually(t, func() bool { return strings.Count(p.Log.String(), "level=ERROR") > 1 }, "a log line about the outage")
	server.Restart()
	change := proctest.Must(events.NewChange(events.Change{ID: "c1", URL: git.URL("acme/widgets")}))(t)
	proctest.Must(0, app.PublishChange(ctx, client, events.DefaultNamespace, change))(t)
	if r := proctest.AwaitResults(t, client, 1)[0]; r.Type != events.ResultSynced {
		t.Errorf("result %+v, want synced", r)
	}
	if code := p.Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestSecondVolumeUnderOnePrefixIsRefused(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	first := proctest.Start(t, "serve", "--redis", server.URL(), "--root", t.TempDir())
	first.AwaitLog("worker takes changes")
	_, stderr, code := proctest.RunLockstep(t, nil, "serve", "--redis", server.URL(), "--root", t.TempDir())
	if code != term.ExitFailed || !strings.Contains(stderr, "mount that one, choose another --prefix") {
		t.Errorf("exit code %d, want 1; stderr: %s", code, stderr)
	}
}

func TestMetricsAreServedWhileDraining(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	held, release := make(chan struct{}, 1), make(chan struct{})
	git := proctest.StartGit(t, gitserver.WithBefore(func(ctx context.Context, _, _ string) {
		select {
		case held <- struct{}{}:
		default:
		}
		select {
		case <-release:
		case <-ctx.Done():
		}
	}))
	server := redistest.Start(t)
	proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	p := proctest.Start(t, "serve", "--redis", server.URL(), "--root", t.TempDir(), "--listen", "127.0.0.1:0")
	address := p.ListenAddress("listening")
	get := func(path string) int {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	proctest.Eventually(t, func() bool { return get("/readyz") == http.StatusOK }, "it is ready")
	change := proctest.Must(events.NewChange(events.Change{URL: git.URL("acme/widgets")}))(t)
	proctest.Must(0, app.PublishChange(ctx, server.Client(), events.DefaultNamespace, change))(t)
	<-held
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	p.AwaitLog("worker draining")
	if ready, metrics := get("/readyz"), get("/metrics"); ready != http.StatusServiceUnavailable || metrics != http.StatusOK {
		t.Errorf("while draining: readyz %d, want 503; metrics %d, want 200", ready, metrics)
	}
	close(release)
	if code := p.AwaitExit(time.Minute); code != term.ExitDone {
		t.Errorf("exit code %d, want 0", code)
	}
	if r := proctest.AwaitResults(t, server.Client(), 1)[0]; r.Type != events.ResultSynced {
		t.Errorf("result %+v, want synced", r)
	}
}
