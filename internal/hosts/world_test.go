package hosts_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/git"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	forge  = "forge.example"
	prefix = "lockstep:{0}:"
)

// world simulates processes that share a Redis, and hosts, in virtual time.
type world struct {
	*testing.T
	processes []*hosts.Limiter
	client    *redis.Client

	mu    sync.Mutex
	locks map[string]chan struct{} // by key; a mutex would stop virtual time
	jobs  sync.WaitGroup
	log   []settlement
	takes atomic.Int64
	shift atomic.Int64 // of Redis' clock, in ms
}

// settlement is a change that was settled.
type settlement struct {
	repo  string
	at    time.Time
	takes int
	took  time.Duration
}

// simulate runs a test with n processes in virtual time.
func simulate(t *testing.T, n int, change func(*hosts.Config), test func(w *world)) {
	t.Helper()
	server := redistest.StartReal(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, PoolSize: 4})
	defer client.Close()
	if err := client.Ping(t.Context()).Err(); err != nil { // starts go-redis' clock outside
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, client: client, locks: map[string]chan struct{}{}}
		for range n {
			cfg := hosts.Config{Redis: virtual{client, &sync.Mutex{}, &w.shift}, Prefix: prefix}
			if change != nil {
				change(&cfg)
			}
			l := testenv.Must(hosts.New(cfg))(t)
			w.processes = append(w.processes, l)
		}
		test(w)
	})
}

// virtual tells the scripts the virtual time.
type virtual struct {
	*redis.Client
	one   *sync.Mutex // go-redis' own limit of connections does not work in virtual time
	shift *atomic.Int64
}

func (v virtual) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	v.one.Lock()
	defer v.one.Unlock()
	return v.Client.EvalSha(ctx, sha, keys, v.moved(args)...)
}

func (v virtual) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	v.one.Lock()
	defer v.one.Unlock()
	return v.Client.Eval(ctx, script, keys, v.moved(args)...)
}

func (v virtual) moved(args []any) []any {
	var real syscall.Timeval
	_ = syscall.Gettimeofday(&real)
	args = slices.Clone(args)
	args[0] = time.Now().UnixMilli() - real.Nano()/int64(time.Millisecond) + v.shift.Load()
	return args
}

// lock waits for a lock.
func (w *world) lock(key string) (unlock func()) {
	w.mu.Lock()
	if w.locks[key] == nil {
		w.locks[key] = make(chan struct{}, 1)
	}
	lock := w.locks[key]
	w.mu.Unlock()
	lock <- struct{}{}
	return func() { <-lock }
}

// server answers requests.
type server func(repo string) (latency time.Duration, a wire.Answer)

var good = wire.Answer{Status: 200, Latency: time.Millisecond}

func tooMany(after time.Duration) wire.Answer {
	return refusal(http.StatusTooManyRequests, after)
}

func refusal(status int, after time.Duration) wire.Answer {
	h := http.Header{}
	if after > 0 {
		h.Set("Retry-After", strconv.Itoa(int(after/time.Second)))
	}
	err := &git.Error{Retry: git.Contention, Class: git.ClassBusy, RetryAfter: after, Err: errors.New("limited")}
	return wire.Answer{Status: status, Header: h, Err: err}
}

var noAnswer = wire.Answer{Err: git.Errorf(git.Retryable, git.ClassNetwork, "no answer")}

// change is one change of a repository, which sends two requests.
type change struct {
	repo string
	poll bool
}

// start handles a change until it is settled, like a worker: what must wait is taken again by any process.
func (w *world) start(ctx context.Context, c change, host string, answer server) {
	began := time.Now()
	w.jobs.Go(func() {
		takes := 0
		for ctx.Err() == nil {
			takes++
			err := w.take(ctx, c, host, answer)
			if err == nil {
				w.mu.Lock()
				w.log = append(w.log, settlement{c.repo, time.Now(), takes, time.Since(began)})
				w.mu.Unlock()
				return
			}
			after := git.RetryAfter(err)
			if after == 0 {
				after = 10 * time.Second
			}
			pause(ctx, after+rand.N(100*time.Millisecond)) // the stream looks for due entries ten times a second
		}
	})
}

func (w *world) take(ctx context.Context, c change, host string, answer server) error {
	p := rand.N(len(w.processes))
	defer w.lock(fmt.Sprint(p, c.repo))() // a process has one change of a repository in flight
	w.takes.Add(1)
	j := w.processes[p].Job(c.repo, c.poll)
	defer j.Leave(ctx)
	if err := j.Enter(ctx, hosts.Target{Host: host, Credential: "robot"}); err != nil {
		return err
	}
	defer w.lock(c.repo)() // the lease
	for range 2 {
		if err := request(ctx, j.With("robot"), host, c.repo, answer); err != nil {
			return err
		}
	}
	return nil
}

// request sends a request, as package wire does.
func request(ctx context.Context, limiter wire.Limiter, host, repo string, answer server) error {
	for {
		done, err := limiter.Acquire(ctx, host)
		if err != nil {
			return err
		}
		latency, a := answer(repo)
		pause(ctx, latency)
		if ctx.Err() != nil {
			a = wire.Answer{Err: context.Canceled}
		}
		if !done(a) || a.Err == nil {
			return a.Err
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// settled returns the number of settled changes.
func (w *world) settled() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.log)
}

// perSecond is a host that answers one request a second, and refuses the others.
type perSecond struct {
	mu                sync.Mutex
	last              time.Time
	answered, refused int
}

func (h *perSecond) answer(string) (time.Duration, wire.Answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.last) < time.Second {
		h.refused++
		return 20 * time.Millisecond, tooMany(time.Second)
	}
	h.last = time.Now()
	h.answered++
	return 20 * time.Millisecond, good
}

func repoName(n int) string { return fmt.Sprintf("acme/r-%05d", n) }
