package hosts_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lockstep/events"
	"lockstep/internal/hosts"
	"lockstep/internal/logtest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(wakerRedis); url != "" {
		waker(url)
	}
	testenv.Main(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.startGlobalTimeCache.func1"))
}

const host = "forge.example"

// rig is several processes that share one Redis and one clock.
type rig struct {
	t         testing.TB
	server    *redistest.Server
	processes []*process
}

// process is the Budgets of one process, with its log and the waiters it has woken.
type process struct {
	*hosts.Budgets
	t     testing.TB
	log   *logtest.Buffer
	woken []hosts.Waiter
}

func newRig(t testing.TB, n int, change ...func(*hosts.Config)) *rig {
	t.Helper()
	r := &rig{t: t, server: redistest.Start(t)}
	for range n {
		r.start(change...)
	}
	return r
}

func (r *rig) start(change ...func(*hosts.Config)) *process {
	r.t.Helper()
	p := &process{t: r.t, log: &logtest.Buffer{}}
	cfg := hosts.Config{
		Prefix: "lockstep:{0}:", Process: fmt.Sprint("p", len(r.processes)),
		Log: slog.New(slog.NewTextHandler(p.log, nil)),
		Wake: func(_ context.Context, waiters []hosts.Waiter) ([]bool, error) {
			p.woken = append(p.woken, waiters...)
			return nil, nil
		},
	}
	if r.server != nil {
		cfg.Redis = r.server.Client()
	}
	for _, c := range change {
		c(&cfg)
	}
	b, err := hosts.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	p.Budgets = b
	r.processes = append(r.processes, p)
	return p
}

func (r *rig) advance(d time.Duration) {
	for _, p := range r.processes {
		hosts.Advance(p.Budgets, d)
	}
}

// state returns the state of the host.
func (r *rig) state() hosts.Host {
	r.t.Helper()
	all, err := r.processes[0].List(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, h := range all {
		if h.Name == host {
			return h
		}
	}
	return hosts.Host{}
}

// popped returns the repositories woken since the last call.
func (p *process) popped() (keys []string) {
	for _, w := range p.poppedWaiters() {
		keys = append(keys, w.Key)
	}
	return keys
}

func (p *process) poppedWaiters() []hosts.Waiter {
	hosts.Flush(context.Background(), p.Budgets)
	waiters := p.woken
	p.woken = nil
	return waiters
}

func request(t testing.TB, repo string, kind hosts.Kind, credential string) hosts.Request {
	t.Helper()
	path, err := events.ParseRepoPath(repo)
	if err != nil {
		t.Fatal(err)
	}
	return hosts.Request{Host: host, Credential: credential, Repo: path, Kind: kind}
}

func (p *process) enter(repo string, kind hosts.Kind, credential string) (*hosts.Permit, *hosts.Limited) {
	p.t.Helper()
	permit, err := p.Enter(context.Background(), request(p.t, repo, kind, credential))
	limited, ok := errors.AsType[*hosts.Limited](err)
	if err != nil && !ok || (err == nil) != (permit != nil) {
		p.t.Fatalf("Enter(%s): %v, %v", repo, permit, err)
	}
	return permit, limited
}

func (p *process) granted(repo string, kind hosts.Kind, credential string) *hosts.Permit {
	p.t.Helper()
	permit, limited := p.enter(repo, kind, credential)
	if limited != nil {
		p.t.Fatalf("%s %s: %v", kind, repo, limited)
	}
	return permit
}

func (p *process) refused(repo string, kind hosts.Kind, credential string, want hosts.Reason) *hosts.Limited {
	p.t.Helper()
	permit, limited := p.enter(repo, kind, credential)
	if permit != nil || limited.Reason != want {
		p.t.Fatalf("%s %s: %v; want it refused: %s", kind, repo, limited, want)
	}
	return limited
}

// known returns the block that the process remembers. If this test was slow, it has asked Redis once more.
func (p *process) known(credential string) *hosts.Limited {
	p.t.Helper()
	for range 10 {
		if l := p.blocked(credential); l != nil {
			return l
		}
		req := request(p.t, "a/1", hosts.Push, credential)
		req.Optional = true
		if permit, err := p.Enter(context.Background(), req); err == nil {
			done(permit, hosts.Answer{Err: context.Canceled})
			return nil
		}
	}
	return nil
}

// blocked asks only the memory of the process.
func (p *process) blocked(credential string) *hosts.Limited {
	p.t.Helper()
	return p.Blocked(request(p.t, "a/1", hosts.Push, credential))
}

// remembers reports whether a process certainly trusts what it learned of a block; it asks Redis again after half a second.
func remembers(learned time.Time) bool { return time.Since(learned) < 400*time.Millisecond }

func done(permit *hosts.Permit, a hosts.Answer) { permit.Done(context.Background(), a) }

// once sends one request.
func (p *process) once(repo, credential string, a hosts.Answer) {
	p.t.Helper()
	done(p.granted(repo, hosts.Push, credential), a)
}

var (
	success = hosts.Answer{Status: 200, Latency: 50 * time.Millisecond}
	dead    = hosts.Answer{Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}
	broken  = hosts.Answer{Status: 502}
)

func tooMany(retryAfter time.Duration) hosts.Answer {
	h := http.Header{}
	if retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
	}
	return hosts.Answer{Status: 429, Header: h}
}

func withQuota(status, remaining, limit int, reset time.Duration) hosts.Answer {
	h := http.Header{}
	h.Set("X-RateLimit-Remaining", strconv.Itoa(remaining))
	h.Set("X-RateLimit-Limit", strconv.Itoa(limit))
	now := time.Now()
	h.Set("Date", now.UTC().Format(http.TimeFormat))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(now.Unix()+int64(reset/time.Second), 10))
	return hosts.Answer{Status: status, Header: h, Latency: 50 * time.Millisecond}
}
