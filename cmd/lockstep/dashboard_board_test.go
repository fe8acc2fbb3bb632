package main

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
	"lockstep/internal/gitserver"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
)

const boardToken = "a-token-for-the-dashboard"

// board is a service with a dashboard, and a remote that can be made to hang.
type board struct {
	t      *testing.T
	git    *gitserver.Server
	redis  *redistest.Server
	client redis.UniversalClient
	serve  *process
	root   string
	base   string

	mu    sync.Mutex
	hangs map[string]chan struct{}
}

func startBoard(t *testing.T) *board {
	t.Helper()
	b := &board{t: t, root: t.TempDir(), hangs: map[string]chan struct{}{}}
	b.git = startGit(t, gitserver.WithBefore(func(ctx context.Context, repo, _ string) {
		b.mu.Lock()
		hang := b.hangs[repo]
		b.mu.Unlock()
		if hang != nil {
			select {
			case <-hang:
			case <-ctx.Done():
			}
		}
	}))
	b.redis = redistest.StartReal(t, "--appendonly", "yes", "--appendfsync", "always")
	b.client = b.redis.Client()
	b.history()
	cmd := command(t, "serve", "--redis", b.redis.URL(), "--root", b.root, "--listen", "127.0.0.1:0", "--worker", "worker-1",
		"--max-attempts", "1", "--circuit-failures", "100")
	cmd.Env = append(cmd.Environ(), "LOCKSTEP_API_TOKEN="+boardToken)
	b.serve = startCommand(t, cmd)
	b.serve.awaitLog("worker takes changes")
	b.serve.awaitLog("msg=listening address=")
	_, after, _ := strings.Cut(b.serve.log.String(), "msg=listening address=")
	address, _, _ := strings.Cut(after, "\n")
	b.base = "http://" + address
	return b
}

// hang has the remote keep everybody waiting who asks for repo, until it is let go.
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

// push commits to repo, which may be new, and has it announced.
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
	change := must(events.NewChange(events.Change{URL: b.git.URL(repo), App: "docs"}))(b.t)
	if _, err := enqueue(context.Background(), b.client, events.DefaultNamespace, change); err != nil {
		b.t.Fatal(err)
	}
}

func (b *board) lock(repo string) (lock server.Lock) {
	b.t.Helper()
	resp := must(http.Get(b.base + "/api/v1/locks/" + repo))(b.t)
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&lock); err != nil {
		b.t.Fatal(err)
	}
	return lock
}

// lease is the fence of the lease on repo; 0 when it is free.
func (b *board) lease(repo string) uint64 {
	b.t.Helper()
	lock := b.lock(repo)
	if !lock.Held {
		return 0
	}
	return lock.Fence
}

// assertReleased checks that the lease with that fence is nobody's: for a moment that is said of it, and then it is gone.
func (b *board) assertReleased(repo string, fence uint64) {
	b.t.Helper()
	if lock := b.lock(repo); lock.Held && lock.Fence == fence && lock.Holder.Job != "" {
		b.t.Errorf("%s has the lease on %s still", lock.Holder.Worker, repo)
	}
}

// stuck leaves a lease in the hands of a worker whose remote hangs.
func (b *board) stuck(repo string) (fence uint64) {
	b.t.Helper()
	must(b.git.Create(context.Background(), repo, map[string]string{"a": "1"}))(b.t)
	b.hang(repo)
	b.ask(repo)
	eventually(b.t, func() bool { fence = b.lease(repo); return fence != 0 }, "a lease on %s", repo)
	return fence
}

// letter leaves a dead letter of a remote that has failed, and mends the remote.
func (b *board) letter(repo string) (id string) {
	b.t.Helper()
	ctx := context.Background()
	must(b.git.Create(ctx, repo, map[string]string{"a": "1"}))(b.t)
	b.git.Answer(repo, http.StatusServiceUnavailable)
	had := must(b.client.XLen(ctx, events.DefaultNamespace.Dead()).Result())(b.t)
	b.ask(repo)
	eventually(b.t, func() bool { return b.client.XLen(ctx, events.DefaultNamespace.Dead()).Val() > had }, "a dead letter of %s", repo)
	b.git.Answer(repo, 0)
	return must(b.client.XRevRangeN(ctx, events.DefaultNamespace.Dead(), "+", "-", 1).Result())(b.t)[0].ID
}

func (b *board) letters() (ids []string) {
	b.t.Helper()
	for _, e := range must(b.client.XRange(context.Background(), events.DefaultNamespace.Dead(), "-", "+").Result())(b.t) {
		ids = append(ids, e.ID)
	}
	return ids
}

// history adds results as they would have come in the last 15 min.
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
			Repo: must(events.ParseRepoPath([]string{"acme/widgets", "acme/docs", "platform/gateway", "web/storefront"}[dice.IntN(4)]))(b.t),
			Ref:  must(events.ParseRef("main"))(b.t), After: commit, Took: delay / 2,
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
		fields := must(stream.Fields(must(stream.ResultMessage(r))(b.t)))(b.t)
		pipe.XAdd(context.Background(), &redis.XAddArgs{Stream: events.DefaultNamespace.Results(), ID: fmt.Sprintf("%d-0", at.UnixMilli()), Values: fields})
	}
	must(pipe.Exec(context.Background()))(b.t)
}

// stage brings about something to look at.
func (b *board) stage() {
	b.t.Helper()
	ctx := context.Background()
	start(b.t, "serve", "--redis", b.redis.URL(), "--root", b.root, "--worker", "worker-2").awaitLog("worker takes changes")
	for i := range 40 {
		b.push([]string{"acme/widgets", "acme/docs", "search/indexer", "platform/gateway", "platform/billing", "web/storefront"}[i%6])
	}
	b.letter("platform/legacy")
	if err := b.client.XAdd(ctx, &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: []string{"repo", "acme/..", "url", "not a remote"}}).Err(); err != nil {
		b.t.Fatal(err)
	}
	for app, repo := range map[string]string{"docs": "acme/docs", "search": "search/indexer", "gitops": "platform/gateway"} {
		document := fmt.Sprintf(`{"app":%q,"url":%q,"ref":"main","poll":"15m","notify_url":"https://%s.example.org/hooks","notify_secret":"signing"}`, app, b.git.URL(repo), app)
		req := must(http.NewRequest(http.MethodPut, b.base+"/api/v1/watches", strings.NewReader(document)))(b.t)
		req.Header.Set("Authorization", "Bearer "+boardToken)
		resp := must(http.DefaultClient.Do(req))(b.t)
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			b.t.Fatalf("a watch of %s: %d", repo, resp.StatusCode)
		}
	}
	eventually(b.t, func() bool { return len(b.letters()) >= 2 }, "two letters")
}
