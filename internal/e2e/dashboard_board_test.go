package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/hosts"
	"lockstep/internal/operate"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

const boardToken = "a-token-for-the-dashboard"

// board is a service with a dashboard and a Git server that can hang.
type board struct {
	t      *testing.T
	git    *gitserver.Server
	redis  *redistest.Server
	client redis.UniversalClient
	serve  *proctest.Process
	root   string
	base   string

	mu    sync.Mutex
	hangs map[string]chan struct{}
}

func startBoard(t *testing.T) *board {
	t.Helper()
	b := &board{t: t, root: t.TempDir(), hangs: map[string]chan struct{}{}}
	b.git = proctest.StartGit(t, gitserver.WithBefore(func(ctx context.Context, repo, service string) {
		b.mu.Lock()
		hang := b.hangs[repo]
		b.mu.Unlock()
		if hang != nil && service == "git-upload-pack" { // the list of refs must begin within a minute
			select {
			case <-hang:
			case <-ctx.Done():
			}
		}
	}))
	b.redis = redistest.StartReal(t, "--appendonly", "yes", "--appendfsync", "always")
	b.client = b.redis.Client()
	b.history()
	cmd := proctest.Command(t, "serve", "--redis", b.redis.URL(), "--root", b.root, "--listen", "127.0.0.1:0", "--worker", "worker-1",
		"--max-attempts", "1")
	cmd.Env = append(cmd.Environ(), "LOCKSTEP_API_TOKEN="+boardToken)
	b.serve = proctest.StartCommand(t, cmd)
	b.serve.AwaitLog("worker takes changes")
	b.base = "http://" + b.serve.ListenAddress("listening")
	return b
}

// hang makes the Git server hold requests for repo until letGo.
func (b *board) hang(repo string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hangs[repo] = make(chan struct{})
}

func (b *board) letGo(repo string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.hangs[repo])
	delete(b.hangs, repo)
}

// push commits to repo, which may be new, and publishes a change.
func (b *board) push(repo string) {
	b.t.Helper()
	ctx := context.Background()
	files := map[string]string{"README": time.Now().String()}
	var err error
	if b.git.Head(repo, "refs/heads/main") == "" {
		_, err = b.git.Create(ctx, repo, files)
	} else {
		_, err = b.git.Commit(ctx, repo, gitserver.Main, gitserver.Edit{Write: files})
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.ask(repo)
}

func (b *board) ask(repo string) {
	b.t.Helper()
	change := proctest.Must(events.NewChange(events.Change{URL: b.git.URL(repo), App: "docs"}))(b.t)
	proctest.Must(changes.Publish(context.Background(), b.client, events.DefaultNamespace, change))(b.t)
}

func (b *board) lock(repo string) (lock operate.Lease) {
	b.t.Helper()
	resp := proctest.Must(http.Get(b.base + "/api/v1/locks/" + repo))(b.t)
	defer resp.Body.Close()
	proctest.Must(0, json.NewDecoder(resp.Body).Decode(&lock))(b.t)
	return lock
}

// lease returns the fence of the lease on repo, or 0 if it is free.
func (b *board) lease(repo string) uint64 {
	b.t.Helper()
	lock := b.lock(repo)
	if !lock.Held {
		return 0
	}
	return lock.Fence
}

// assertReleased checks that the lease with that fence has no holder.
func (b *board) assertReleased(repo string, fence uint64) {
	b.t.Helper()
	if lock := b.lock(repo); lock.Held && lock.Fence == fence && lock.Holder.Job != "" {
		b.t.Errorf("%s still holds the lease on %s", lock.Holder.Worker, repo)
	}
}

// stuck makes a worker hold a lease on repo while the Git server hangs.
func (b *board) stuck(repo string) (fence uint64) {
	b.t.Helper()
	proctest.Must(b.git.Create(context.Background(), repo, map[string]string{"a": "1"}))(b.t)
	b.hang(repo)
	b.ask(repo)
	proctest.Eventually(b.t, func() bool { fence = b.lease(repo); return fence != 0 }, "a lease on %s", repo)
	return fence
}

// letter makes a sync of repo fail and returns the ID of its dead letter.
func (b *board) letter(repo string) (id string) {
	b.t.Helper()
	ctx := context.Background()
	proctest.Must(b.git.Create(ctx, repo, map[string]string{"a": "1"}))(b.t)
	b.git.Answer(repo, http.StatusServiceUnavailable)
	had := proctest.Must(b.client.XLen(ctx, events.DefaultNamespace.Dead()).Result())(b.t)
	b.ask(repo)
	proctest.Eventually(b.t, func() bool { return b.client.XLen(ctx, events.DefaultNamespace.Dead()).Val() > had }, "a dead letter of %s", repo)
	b.git.Answer(repo, 0)
	return proctest.Must(b.client.XRevRangeN(ctx, events.DefaultNamespace.Dead(), "+", "-", 1).Result())(b.t)[0].ID
}

func (b *board) letters() (ids []string) {
	b.t.Helper()
	for _, e := range proctest.Must(b.client.XRange(context.Background(), events.DefaultNamespace.Dead(), "-", "+").Result())(b.t) {
		ids = append(ids, e.ID)
	}
	return ids
}

// history adds results of the last 15 minutes.
func (b *board) history() {
	b.t.Helper()
	dice := rand.New(rand.NewPCG(1, 2))
	pipe := b.client.Pipeline()
	now := time.Now()
	for at := now.Add(-15 * time.Minute); at.Before(now); at = at.Add(time.Duration(200+dice.IntN(1800)) * time.Millisecond) {
		ago := now.Sub(at).Minutes()
		delay := time.Duration((30 + 25*math.Sin(ago) + dice.ExpFloat64()*20) * float64(time.Millisecond))
		commit := fmt.Sprintf("%016x%016x%08x", dice.Uint64(), dice.Uint64(), dice.Uint32())
		r := events.Result{
			ID: fmt.Sprintf("past/%d-0", at.Add(-delay).UnixMilli()), Type: events.ResultSynced, Source: "/lockstep/worker/worker-1", Time: at, App: "docs",
			Repo: proctest.Must(events.ParseRepoPath([]string{"acme/widgets", "acme/docs", "platform/gateway", "web/storefront"}[dice.IntN(4)]))(b.t),
			Ref:  proctest.Must(events.ParseRef("main"))(b.t), After: commit, Took: delay / 2,
			Files: []events.File{{Path: "README", Status: events.FileModified}},
		}
		switch dice.IntN(12) {
		case 0, 1, 2:
			r.Before = r.After
		case 3:
			if ago > 4 && ago < 7 {
				r.Type, r.After, r.Class, r.Error = events.ResultFailed, "", events.ClassServer, "the remote answered with HTTP status 503"
			}
		}
		fields := proctest.Must(stream.Fields(proctest.Must(changes.ResultMessage(r))(b.t)))(b.t)
		pipe.XAdd(context.Background(), &redis.XAddArgs{Stream: events.DefaultNamespace.Results(), ID: fmt.Sprintf("%d-0", at.UnixMilli()), Values: fields})
	}
	proctest.Must(pipe.Exec(context.Background()))(b.t)
}

// stage fills every page of the dashboard.
func (b *board) stage() {
	b.t.Helper()
	ctx := context.Background()
	proctest.Start(b.t, "serve", "--redis", b.redis.URL(), "--root", b.root, "--worker", "worker-2").AwaitLog("worker takes changes")
	for i := range 40 {
		b.push([]string{"acme/widgets", "acme/docs", "search/indexer", "platform/gateway", "platform/billing", "web/storefront"}[i%6])
	}
	b.letter("platform/legacy")
	if err := b.client.XAdd(ctx, &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: []string{"repo", "acme/..", "url", "not a remote"}}).Err(); err != nil {
		b.t.Fatal(err)
	}
	for app, repo := range map[string]string{"docs": "acme/docs", "search": "search/indexer", "gitops": "platform/gateway"} {
		document := fmt.Sprintf(`{"app":%q,"url":%q,"ref":"main","poll":"15m","notify_url":"https://%s.example.org/hooks","notify_secret":"signing"}`, app, b.git.URL(repo), app)
		req := proctest.Must(http.NewRequest(http.MethodPut, b.base+"/api/v1/watches", strings.NewReader(document)))(b.t)
		req.Header.Set("Authorization", "Bearer "+boardToken)
		resp := proctest.Must(http.DefaultClient.Do(req))(b.t)
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			b.t.Fatalf("a watch of %s: %d", repo, resp.StatusCode)
		}
	}
	proctest.Eventually(b.t, func() bool { return len(b.letters()) >= 2 }, "two letters")
}

// limitHost makes a host limit a credential for a long time.
func (b *board) limitHost(host string) {
	b.t.Helper()
	limiter := proctest.Must(hosts.New(hosts.Config{Redis: b.client, Prefix: string(events.DefaultNamespace)}))(b.t)
	job := limiter.Job("acme/widgets", false)
	defer job.Leave(b.t.Context())
	done := proctest.Must(job.With("robot").Acquire(b.t.Context(), host))(b.t)
	done(wire.Answer{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"3600"}}})
}
