package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/redistest"
)

func TestAPlainEntryBecomesOneTreeAndOneResult(t *testing.T) {
	ctx := context.Background()
	git, server, root := startGit(t), redistest.Start(t), t.TempDir()
	client := server.Client()
	head := must(git.Create(ctx, "acme/widgets", map[string]string{"README": "hello\n"}))(t)
	for range 2 {
		start(t, "serve", "--redis", server.URL(), "--root", root)
	}
	entry := must(client.XAdd(ctx, &redis.XAddArgs{Stream: "lockstep:{0}:changes",
		Values: []string{"repo", "acme/widgets", "url", git.URL("acme/widgets"), "ref", "refs/heads/main"}}).Result())(t)

	results := awaitResults(t, client, 1)
	r := results[0]
	if r.Type != events.ResultSynced || r.After != head || r.Ref.String() != "refs/heads/main" || r.Path != "acme/widgets" {
		t.Errorf("result %+v, want acme/widgets synced to %s", r, head)
	}
	if len(r.Deliveries) != 1 || r.Deliveries[0] != entry {
		t.Errorf("the result answers %q, want the entry %s", r.Deliveries, entry)
	}
	if got := gitIn(t, filepath.Join(root, "acme/widgets"), "log", "-1", "--format=%H"); got != head {
		t.Errorf("published %s, want %s", got, head)
	}
	if n := must(client.XLen(ctx, "lockstep:{0}:results").Result())(t); n != 1 {
		t.Errorf("%d results, want 1", n)
	}
	assertIdle(t, client)
}

// load is many pushes to many repositories, each with a change that announces its own commit.
type load struct {
	repos, pushes int
	git           *gitserver.Server
	client        redis.UniversalClient
	heads         []string
}

func newLoad(t *testing.T, git *gitserver.Server, client redis.UniversalClient) *load {
	l := &load{repos: 50, pushes: 20, git: git, client: client}
	if testing.Short() {
		l.repos, l.pushes = 10, 5
	}
	l.heads = make([]string, l.repos)
	return l
}

func (l *load) repo(i int) string { return fmt.Sprintf("acme/repo-%02d", i) }

// push makes all pushes, a few repositories at a time.
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
				if err := publish(ctx, l.client, (&demo{}).config(), change); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// assertDone checks the end state: each repository on its remote's head, one result for each
// change, nothing pending, nothing dead.
func (l *load) assertDone(t *testing.T, root string) {
	t.Helper()
	answered := map[string]int{}
	for _, r := range awaitResults(t, l.client, l.repos*l.pushes) {
		if r.Type != events.ResultSynced {
			t.Errorf("%s: %s %s", r.Repo, r.Type, r.Error)
		}
		for _, id := range r.Deliveries {
			answered[id]++
		}
	}
	if len(answered) != l.repos*l.pushes {
		t.Errorf("%d changes answered, want %d", len(answered), l.repos*l.pushes)
	}
	for id, n := range answered {
		if n != 1 {
			t.Errorf("change %s was answered %d times", id, n)
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
	assertIdle(t, l.client)
}

func TestManyRepositoriesGoOneAtATimeEachAndAllInParallel(t *testing.T) {
	git, server, root := startGit(t), redistest.Start(t), t.TempDir()
	l := newLoad(t, git, server.Client())
	for range 2 {
		start(t, "serve", "--redis", server.URL(), "--root", root, "--log-level", "warn")
	}
	if err := l.push(context.Background()); err != nil {
		t.Fatal(err)
	}
	l.assertDone(t, root)
	for i := range l.repos {
		if most := git.Stats(l.repo(i)).MaxActive; most > 1 {
			t.Errorf("%s: %d upload-packs at once, want one", l.repo(i), most)
		}
	}
	if git.MaxRepos() < 2 {
		t.Error("no two repositories were ever fetched at once")
	}
}

func TestSIGTERMHandsWorkOverAtOnce(t *testing.T) {
	ctx := context.Background()
	held := make(chan string, 10)
	release := make(chan struct{})
	git := startGit(t, gitserver.WithBefore(func(ctx context.Context, repo, service string) {
		select {
		case held <- service:
		default:
		}
		select {
		case <-release:
		case <-ctx.Done():
		}
	}))
	server, root := redistest.Start(t), t.TempDir()
	client := server.Client()
	head := must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	args := []string{"serve", "--redis", server.URL(), "--root", root, "--lease", "5m", "--lock-wait", "5m", "--grace", "500ms"}
	first := start(t, args...)
	change := must(events.NewChange(events.Change{ID: "c1", URL: git.URL("acme/widgets")}))(t)
	if err := publish(ctx, client, (&demo{}).config(), change); err != nil {
		t.Fatal(err)
	}
	<-held // the first worker is asking the remote
	if code := first.terminate(); code != exitDone {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	close(release)
	start(t, args...)
	r := awaitResults(t, client, 1)[0] // with less patience than the lease would take to lapse
	if r.Type != events.ResultSynced || r.After != head || r.Attempts != 1 {
		t.Errorf("result %+v; want a sync that counts as the first attempt", r)
	}
	assertIdle(t, client)
}

func TestAServiceOutlastsRedis(t *testing.T) {
	ctx := context.Background()
	git, server, root := startGit(t), redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always"), t.TempDir()
	client := server.Client()
	must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	server.Stop()
	p := start(t, "serve", "--redis", server.URL(), "--root", root)
	p.awaitLog("does not answer; start it, or name another with --redis")
	server.Restart()
	p.awaitLog("worker takes changes")

	server.Stop()
	eventually(t, func() bool { return strings.Count(p.log.String(), "level=ERROR") > 1 }, "a line that says that Redis went away")
	server.Restart()
	change := must(events.NewChange(events.Change{ID: "c1", URL: git.URL("acme/widgets")}))(t)
	if err := publish(ctx, client, (&demo{}).config(), change); err != nil {
		t.Fatal(err)
	}
	if r := awaitResults(t, client, 1)[0]; r.Type != events.ResultSynced {
		t.Errorf("result %+v, want synced", r)
	}
	if code := p.terminate(); code != exitDone {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestASecondVolumeUnderOnePrefixIsRefused(t *testing.T) {
	server := redistest.Start(t)
	first := start(t, "serve", "--redis", server.URL(), "--root", t.TempDir())
	first.awaitLog("worker takes changes")
	_, stderr, code := runLockstep(t, nil, "serve", "--redis", server.URL(), "--root", t.TempDir())
	if code != exitFailed || !strings.Contains(stderr, "mount that one, choose another --prefix") {
		t.Errorf("exit code %d, want 1; stderr: %s", code, stderr)
	}
}

func TestAServiceWhoseRootCannotBeUsedSaysSoAndEnds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "serve", "--root", filepath.Join(file, "below"), "--log-level", "error")
	if code := p.ended(time.Minute); code != exitFailed || strings.Count(p.log.String(), "\n") != 1 {
		t.Errorf("exit code %d, want 1 and one line: %s", code, tail(p.log.String(), 1000))
	}
}

func TestAServiceWaitsForARedisThatTakesNoWrites(t *testing.T) {
	ctx := context.Background()
	server := redistest.StartReal(t)
	client := server.Client()
	if err := client.Do(ctx, "REPLICAOF", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	p := start(t, "serve", "--roles", "worker", "--redis", server.URL(), "--root", t.TempDir())
	p.awaitLog("cannot serve at present")
	time.Sleep(2 * redisPause) // tries that say nothing
	if err := client.Do(ctx, "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	p.awaitLog("worker takes changes")
	if n := strings.Count(p.log.String(), "READONLY"); n != 1 {
		t.Errorf("said %d times that Redis takes no writes, want once", n)
	}
}

func TestWhoWatchesADrainSeesItsEnd(t *testing.T) {
	ctx := context.Background()
	held, release := make(chan struct{}, 1), make(chan struct{})
	git := startGit(t, gitserver.WithBefore(func(ctx context.Context, _, _ string) {
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
	must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	p := start(t, "serve", "--redis", server.URL(), "--root", t.TempDir(), "--listen", "127.0.0.1:0")
	address := p.listening("listening")
	get := func(path string) int {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	eventually(t, func() bool { return get("/readyz") == http.StatusOK }, "it is ready")
	change := must(events.NewChange(events.Change{URL: git.URL("acme/widgets")}))(t)
	if err := publish(ctx, server.Client(), (&demo{}).config(), change); err != nil {
		t.Fatal(err)
	}
	<-held
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.awaitLog("worker drains")
	if ready, metrics := get("/readyz"), get("/metrics"); ready != http.StatusServiceUnavailable || metrics != http.StatusOK {
		t.Errorf("while it drains: readyz %d, want 503; metrics %d, want 200", ready, metrics)
	}
	close(release)
	if code := p.ended(time.Minute); code != exitDone {
		t.Errorf("exit code %d, want 0", code)
	}
	if r := awaitResults(t, server.Client(), 1)[0]; r.Type != events.ResultSynced {
		t.Errorf("result %+v, want synced", r)
	}
}
