package locking_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/locking"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(child(role))
	}
	testenv.Parallel(16)
	testenv.Main(m)
}

const (
	prefix   = "{t}:"
	patience = 3 * time.Minute // timeout for events that must happen
)

// process is a Locker with its log and its calls to Redis, as in a separate process.
type process struct {
	*locking.Locker
	log   *recorder
	calls *tap
}

// start opens a Locker named worker with its own client, and closes it at the end of the test.
func start(t testing.TB, server *redistest.Server, worker string, change ...func(*locking.Config)) process {
	t.Helper()
	p := process{log: newRecorder(), calls: &tap{UniversalClient: server.Client()}}
	cfg := locking.Config{
		Redis: p.calls, PubSub: server.Client(), Prefix: prefix, Worker: worker,
		Lease: 2 * time.Second, Wait: 20 * time.Second, Log: slog.New(p.log),
	}
	for _, c := range change {
		c(&cfg)
	}
	locker, err := locking.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.Locker = locker
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_ = locker.Close(ctx)
	})
	return p
}

func lease(d time.Duration) func(*locking.Config) {
	return func(cfg *locking.Config) { cfg.Lease = d }
}

func must(t testing.TB, p process, key, job string) *locking.Lease {
	t.Helper()
	lease, err := p.Acquire(t.Context(), locking.Request{Key: key, Job: job})
	if err != nil {
		t.Fatalf("job %s: %v", job, err)
	}
	return lease
}

// queueUp requests the lease in the background, and returns once the request is queued.
func queueUp(t testing.TB, p process, ctx context.Context, req locking.Request) <-chan result {
	t.Helper()
	n := p.log.count("waiting for lock")
	done := make(chan result, 1)
	go func() {
		lease, err := p.Acquire(ctx, req)
		done <- result{lease, err}
	}()
	p.log.await(t, "waiting for lock", n+1)
	return done
}

// timesOut requests a lease that p does not get. It tries again if no reply from Redis comes within the wait, as on a
// busy machine.
func timesOut(t testing.TB, p process, req locking.Request) *locking.TimeoutError {
	t.Helper()
	var timeout *locking.TimeoutError
	until(t, "the wait ends with ErrTimeout", func() bool {
		_, err := p.Acquire(t.Context(), req)
		if errors.Is(err, locking.ErrUnavailable) {
			return false
		}
		wantErr(t, err, locking.ErrTimeout)
		if !errors.As(err, &timeout) {
			t.Fatalf("got %v", err)
		}
		return true
	})
	return timeout
}

type result struct {
	lease *locking.Lease
	err   error
}

func (r result) ok(t testing.TB) *locking.Lease {
	t.Helper()
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.lease
}

func release(t testing.TB, lease *locking.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// awaitSubscription returns once a lease was handed to p by message, so that it is known to be subscribed.
func awaitSubscription(t testing.TB, p, helper process) {
	t.Helper()
	held := must(t, helper, "hears", "")
	done := queueUp(t, p, t.Context(), locking.Request{Key: "hears"})
	release(t, held)
	release(t, soon(t, done, "a first hand-over").ok(t))
}

// soon returns the next value of ch, or fails the test.
func soon[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: nothing after %v", what, patience)
		panic("unreachable")
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v; want %v", err, want)
	}
}

// tap counts the script calls of a client, and can delay them or lose their replies.
type tap struct {
	redis.UniversalClient
	mu     sync.Mutex
	calls  map[string]int
	keys   int
	spoil  func(hash string) bool           // whether to lose the reply
	before func(hash string, keys []string) // called before each call
	after  func(hash string)                // called before each reply
}

func (c *tap) EvalSha(ctx context.Context, hash string, keys []string, args ...any) *redis.Cmd {
	c.mu.Lock()
	before, after := c.before, c.after
	c.mu.Unlock()
	if before != nil {
		before(hash, keys)
	}
	if after != nil {
		cmd := c.UniversalClient.EvalSha(ctx, hash, keys, args...)
		if cmd.Err() == nil {
			after(hash)
		}
		return c.note(cmd, hash, keys)
	}
	return c.note(c.UniversalClient.EvalSha(ctx, hash, keys, args...), hash, keys)
}

func (c *tap) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return c.note(c.UniversalClient.Eval(ctx, script, keys, args...), redis.NewScript(script).Hash(), keys)
}

func (c *tap) note(cmd *redis.Cmd, hash string, keys []string) *redis.Cmd {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = map[string]int{}
	}
	if cmd.Err() == nil {
		c.calls[hash]++
		if hash == locking.RenewHash {
			c.keys += len(keys)
		}
		if c.spoil != nil && c.spoil(hash) {
			cmd.SetErr(errors.New("the reply is lost"))
		}
	}
	return cmd
}

func (c *tap) count(hash string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[hash]
}

// hold blocks the next call of a script, before it is sent, until let is called. The channel there is closed when
// the call arrives.
func (c *tap) hold(hash string) (there <-chan struct{}, let func()) {
	arrived, free := make(chan struct{}), make(chan struct{})
	var first sync.Once
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = func(h string, _ []string) {
		if h == hash {
			first.Do(func() {
				close(arrived)
				<-free
			})
		}
	}
	return arrived, sync.OnceFunc(func() { close(free) })
}

func (c *tap) loseReply(hash string, times int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spoil = func(h string) bool {
		if h != hash || times == 0 {
			return false
		}
		times--
		return true
	}
}

// recorder is a slog.Handler that tests can wait on.
type recorder struct {
	mu      sync.Mutex
	changed *sync.Cond
	records map[string][]record // by message
}

type record struct {
	level slog.Level
	attrs map[string]string
}

func newRecorder() *recorder {
	r := &recorder{records: map[string][]record{}}
	r.changed = sync.NewCond(&r.mu)
	return r
}

func (r *recorder) Enabled(context.Context, slog.Level) bool { return true }
func (r *recorder) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *recorder) WithGroup(string) slog.Handler            { return r }

func (r *recorder) Handle(_ context.Context, rec slog.Record) error {
	attrs := map[string]string{}
	rec.Attrs(func(a slog.Attr) bool {
		attrs[a.Key] = a.Value.String()
		return true
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records[rec.Message] = append(r.records[rec.Message], record{rec.Level, attrs})
	r.changed.Broadcast()
	return nil
}

func (r *recorder) all(message string) []record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.records[message])
}

func (r *recorder) count(message string) int { return len(r.all(message)) }

// await waits until message was logged n times.
func (r *recorder) await(t testing.TB, message string, n int) {
	t.Helper()
	timer := time.AfterFunc(patience, r.changed.Broadcast)
	defer timer.Stop()
	deadline := time.Now().Add(patience)
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.records[message]) < n {
		if !time.Now().Before(deadline) {
			t.Fatalf("%q was logged %d times; want %d; log: %v", message, len(r.records[message]), n, r.records)
		}
		r.changed.Wait()
	}
}

// tally is an Observer that counts.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (o *tally) add(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.counts == nil {
		o.counts = map[string]int{}
	}
	o.counts[what]++
}

func (o *tally) all() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.counts)
}

func (o *tally) WaitBegan()                                         { o.add("began") }
func (o *tally) WaitEnded(outcome locking.Outcome, _ time.Duration) { o.add(string(outcome)) }
func (o *tally) Released(time.Duration)                             { o.add("released") }
func (o *tally) Lost(time.Duration, bool)                           { o.add("lost") }
func (o *tally) InDoubt()                                           { o.add("in doubt") }
