package e2e

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/logtest"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

// Helpers of the tests that break Redis or kill workers. They speak to the service as its users do: entries of streams, HTTP, commands and
// files. So they say nothing about how it works inside.

// addChange adds a change with plain fields to the stream. Empty fields are left out.
func addChange(ctx context.Context, client redis.UniversalClient, fields map[string]string) error {
	var values []string
	for name, value := range fields {
		if value != "" {
			values = append(values, name, value)
		}
	}
	return client.XAdd(ctx, &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: values}).Err()
}

// pause waits for d or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// isSettled reports whether every change in the stream is settled.
func isSettled(client redis.UniversalClient) bool {
	ctx := context.Background()
	stream, err := client.XInfoStream(ctx, events.DefaultNamespace.Changes()).Result()
	if err != nil {
		return false
	}
	groups, err := client.XInfoGroups(ctx, events.DefaultNamespace.Changes()).Result()
	return err == nil && len(groups) == 1 && groups[0].Pending == 0 && groups[0].LastDeliveredID == stream.LastGeneratedID
}

// isReady requests /readyz at an address.
func isReady(address string) bool {
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Get("http://" + address + "/readyz")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// kill says when a worker is killed.
type kill struct {
	moment  string
	request int64         // number of the request to Redis, from 1
	later   time.Duration // after the reply
	within  time.Duration // the worker is killed after this time at the latest
}

const (
	beforeRequest = "before a request"
	afterRequest  = "after a request, before its reply"
	afterReply    = "in the work after a reply"
	atRandom      = "at random"
)

// killWorker runs a worker until it is killed, and returns when that was.
func (s *storm) killWorker(k kill) (moment string, err error) {
	gate := &gate{to: s.server.Addr, kill: k, reached: make(chan struct{})}
	if gate.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return "", err
	}
	defer gate.close()
	var log logtest.Buffer
	cmd, done := exec.Command("lockstep", append([]string{"serve"}, s.serveAt("redis://"+gate.listener.Addr().String())...)...), make(chan struct{})
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.root, &log, &log
	if err := cmd.Start(); err != nil {
		return "", err
	}
	gate.process = cmd.Process
	gate.serving.Go(gate.accept)
	go func() { _ = cmd.Wait(); close(done) }()
	moment = k.moment
	select {
	case <-gate.reached:
	case <-done:
	case <-time.After(k.within):
		moment = atRandom
		_ = cmd.Process.Kill()
	}
	<-done
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		return "", fmt.Errorf("worker exited instead of being killed %s: %v\n%s", moment, cmd.ProcessState, proctest.Tail(log.String(), 2000))
	}
	return moment, nil
}

// gate is between one worker and Redis. It kills the worker at a request. A client sends a command, or a pipeline, at a time.
type gate struct {
	listener net.Listener
	to       string // address of Redis
	process  *os.Process
	kill     kill
	requests atomic.Int64
	once     sync.Once
	reached  chan struct{}
	serving  sync.WaitGroup
	mu       sync.Mutex
	open     []net.Conn
}

func (g *gate) accept() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
		}
		redis, err := net.Dial("tcp", g.to)
		if err != nil {
			_ = client.Close()
			continue
		}
		g.mu.Lock()
		g.open = append(g.open, client, redis)
		g.mu.Unlock()
		var doomed atomic.Bool // the next reply is that to the chosen request
		g.serving.Go(func() { g.forward(redis, client, func([]byte) bool { return g.passRequest(&doomed) }) })
		g.serving.Go(func() {
			g.forward(client, redis, func([]byte) bool {
				switch {
				case !doomed.Load():
				case g.kill.moment == afterRequest:
					g.strike()
					return false
				default:
					time.AfterFunc(g.kill.later, g.strike)
				}
				return true
			})
		})
	}
}

// forward copies from one connection to the other what pass permits.
func (g *gate) forward(to, from net.Conn, pass func([]byte) bool) {
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil || !pass(buffer[:n]) {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// passRequest counts a request and kills the worker before it, or marks it so that the worker is killed before or after its reply.
func (g *gate) passRequest(doomed *atomic.Bool) bool {
	if g.kill.moment == atRandom || g.requests.Add(1) != g.kill.request {
		return true
	}
	if g.kill.moment == beforeRequest {
		g.strike()
		return false
	}
	doomed.Store(true)
	return true
}

func (g *gate) strike() {
	g.once.Do(func() {
		_ = g.process.Kill()
		close(g.reached)
	})
}

func (g *gate) close() {
	_ = g.listener.Close()
	g.mu.Lock()
	for _, conn := range g.open {
		_ = conn.Close()
	}
	g.mu.Unlock()
	g.serving.Wait()
}

// publishers publish changes of the storm's repositories in all ways that there are, each with an app of its own, until stop is called. Only
// what was confirmed is recorded as such.
type publishers struct {
	*storm
	address string // of a receiver
	token   string
	hooks   string // secret of the source hub
	running sync.WaitGroup
	stop    context.CancelFunc
	counts  [4]atomic.Int64 // confirmed by XADD, command, HTTP and hook
}

// watchingApp is the app of the webhooks: its repositories are watched.
const watchingApp = "hooked"

// receive starts a receiver. Its webhooks say nothing of the commit before, so with the whole history a worker sees
// which of them come late.
func (s *storm) receive() *publishers {
	s.t.Helper()
	p := &publishers{storm: s, address: proctest.FreeAddress(s.t), token: "a token of the API, for tests", hooks: "a secret of the hub, for tests"}
	dir := s.t.TempDir()
	for name, content := range map[string]string{"token": p.token + "\n", "hooks/hub/forge": "github", "hooks/hub/secret": p.hooks} {
		path := filepath.Join(dir, name)
		proctest.Must(0, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)))(s.t)
	}
	for _, repo := range s.repos {
		if _, stderr, code := proctest.RunLockstep(s.t, nil, "watch", "add", s.git.URL(repo), "--app", watchingApp, "--depth", "full", "--no-check", "--redis", s.url); code != 0 {
			s.t.Fatalf("watch add: %d\n%s", code, stderr)
		}
	}
	proctest.Start(s.t, "serve", "--roles", "receiver", "--listen", p.address, "--api-token-file", filepath.Join(dir, "token"), "--hooks", filepath.Join(dir, "hooks"),
		"--spool", filepath.Join(dir, "spool"), "--redis", s.url, "--log-level", "error")
	return p
}

// publish starts a receiver and the publishers.
func (s *storm) publish() *publishers {
	s.t.Helper()
	p := s.receive()
	s.hooked = true
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	for kind, way := range []func(ctx context.Context, id, repo string) bool{p.byXADD, p.byCommand, p.byHTTP, p.byHook} {
		p.running.Go(func() {
			random := rand.New(rand.NewPCG(s.seed, 100+uint64(kind)))
			for ctx.Err() == nil {
				id := uuid.NewString()
				confirmed := way(ctx, id, s.repos[random.IntN(len(s.repos))])
				if kind == 3 {
					id = "hub/" + id + "/0"
				}
				s.sends(id, confirmed)
				if confirmed {
					p.counts[kind].Add(1)
				}
				pause(ctx, time.Duration(random.IntN(40))*time.Millisecond)
			}
		})
	}
	s.t.Cleanup(p.end)
	return p
}

func (p *publishers) end() { p.stop(); p.running.Wait() }

func (p *publishers) byXADD(_ context.Context, id, repo string) bool {
	return addChange(context.Background(), p.client, map[string]string{"id": id, "url": p.git.URL(repo), "app": "plain"}) == nil
}

func (p *publishers) byCommand(ctx context.Context, id, repo string) bool {
	pause(ctx, 300*time.Millisecond) // a process costs more than a request
	return exec.Command("lockstep", "publish", p.git.URL(repo), "--app", "command", "--id", id, "--redis", p.url).Run() == nil
}

func (p *publishers) byHTTP(_ context.Context, id, repo string) bool {
	body := proctest.Must(json.Marshal(map[string]string{"id": id, "url": p.git.URL(repo), "app": "http"}))(p.t)
	return p.post("/api/v1/changes", body, map[string]string{"Authorization": "Bearer " + p.token})
}

func (p *publishers) byHook(_ context.Context, id, repo string) bool {
	head := p.git.Head(repo, stormRefs[0])
	body := proctest.Must(json.Marshal(map[string]any{
		"ref": stormRefs[0], "after": head, "head_commit": map[string]string{"id": head},
		"repository": map[string]any{"full_name": repo, "clone_url": p.git.URL(repo), "default_branch": "main"},
	}))(p.t)
	mac := hmac.New(sha256.New, []byte(p.hooks))
	mac.Write(body)
	return p.post("/hooks/hub", body, map[string]string{
		"X-GitHub-Event": "push", "X-GitHub-Delivery": id, "X-Hub-Signature-256": "sha256=" + hex.EncodeToString(mac.Sum(nil)),
	})
}

// post reports whether the request is answered with 202.
func (p *publishers) post(path string, body []byte, header map[string]string) bool {
	req := proctest.Must(http.NewRequest(http.MethodPost, "http://"+p.address+path, bytes.NewReader(body)))(p.t)
	req.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode == http.StatusAccepted
}

// acker is a consumer group of the results that acknowledges each.
type acker struct {
	mu    sync.Mutex
	acked map[string]bool // entries whose acknowledgement was confirmed
	again []string        // of these, entries that were delivered again
}

func (s *storm) acknowledge() *acker {
	a := &acker{acked: map[string]bool{}}
	client, results := s.server.Client(), events.DefaultNamespace.Results()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	proctest.Must(0, client.XGroupCreateMkStream(ctx, results, "index", "0").Err())(s.t)
	running.Go(func() {
		for from := ">"; ctx.Err() == nil; {
			read, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "index", Consumer: "one", Streams: []string{results, from}, Count: 100, Block: 100 * time.Millisecond}).Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				from = "0" // what may have been read before Redis went, and is not acknowledged
				pause(ctx, 10*time.Millisecond)
				continue
			}
			from = ">"
			if err != nil {
				continue
			}
			for _, entry := range read[0].Messages {
				a.mu.Lock()
				if a.acked[entry.ID] {
					a.again = append(a.again, entry.ID)
				}
				a.mu.Unlock()
				if client.XAck(ctx, results, "index", entry.ID).Err() != nil {
					from = "0"
					continue
				}
				a.mu.Lock()
				a.acked[entry.ID] = true
				a.mu.Unlock()
			}
		}
	})
	s.t.Cleanup(func() { stop(); running.Wait() })
	return a
}

// assertKept checks that the stream has every result that was acknowledged, and that none is delivered again.
func (a *acker) assertKept(s *storm) {
	s.t.Helper()
	kept := map[string]bool{}
	for _, entry := range proctest.Must(s.client.XRange(context.Background(), events.DefaultNamespace.Results(), "-", "+").Result())(s.t) {
		kept[entry.ID] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var gone []string
	for id := range a.acked {
		if !kept[id] {
			gone = append(gone, id)
		}
	}
	if slices.Sort(gone); len(gone) > 0 || len(a.again) > 0 {
		s.t.Errorf("of %d acknowledged results %d vanished and %d came again: %q %q", len(a.acked), len(gone), len(a.again), gone, a.again)
	}
}

// unsettled returns how many confirmed changes have no result, and how many changes have more than one.
func (s *storm) unsettled(f *follower) (lost, doubled int) {
	counts := f.resultCounts()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.sent {
		switch n := counts[a.id]; {
		case n > 1:
			doubled++
		case n == 0 && a.confirmed:
			lost++
		}
	}
	return lost, doubled
}

// fsyncOfDisk is how long the disk of Redis takes to flush in the power cuts: about what a disk in a data centre takes.
const fsyncOfDisk = time.Millisecond

func newPowerCutStorm(t *testing.T, fsync string) (*storm, *redistest.Faulty) {
	t.Helper()
	server := redistest.StartFaulty(t, fsyncOfDisk, "--appendonly", "yes", "--appendfsync", fsync)
	return newStormOn(t, server.Server), server
}
