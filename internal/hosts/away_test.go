package hosts_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/hosts"
)

func TestRedisAway(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := newRig(t, 2)
	p := r.processes[0]
	for _, other := range r.processes {
		hosts.Pump(ctx, other.Budgets)
	}
	hosts.Pump(ctx, p.Budgets)
	p.once("a/1", "", success)
	p.once("a/1", "", broken) // the limit is 8 now
	p.once("a/1", "blocked", tooMany(time.Hour))
	earlier := p.granted("a/0", hosts.Push, "")
	r.server.Stop()

	p.refused("a/1", hosts.Push, "blocked", hosts.RateLimit)
	p.granted("a/1", hosts.Poll, "")
	p.granted("a/2", hosts.Poll, "")
	limited := p.refused("a/3", hosts.Poll, "", hosts.PollLimit)
	if limited.RetryAfter > 3*time.Second {
		t.Errorf("retry after %v, but the repository is not queued", limited.RetryAfter)
	}
	last := p.granted("a/3", hosts.Push, "")
	p.refused("a/4", hosts.Push, "", hosts.AtLimit) // 4 of 8, with 2 processes
	done(last, tooMany(time.Minute))
	p.refused("a/4", hosts.Push, "", hosts.RateLimit)
	p.granted("a/4", hosts.Push, "another")
	done(earlier, success)
	for range 5 {
		done(p.granted("a/5", hosts.Push, "another"), dead)
	}
	p.refused("a/5", hosts.Push, "another", hosts.NoAnswer)
	if _, err := p.List(ctx); err == nil {
		t.Error("List returns no error")
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := p.Enter(cancelled, request(t, "a/6", hosts.Push, "")); !errors.Is(err, context.Canceled) {
		t.Errorf("Enter with a cancelled context: %v", err)
	}

	r.server.Restart()
	r.advance(5 * time.Minute)
	p.once("a/1", "", success)
	if h := r.state(); h.InUse != 0 {
		t.Errorf("after the restart %+v", h)
	}
}

func TestOneProcessKeepsOnePermitWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := newRig(t, 3, one)
	for range 2 {
		for _, p := range r.processes {
			hosts.Pump(ctx, p.Budgets)
		}
	}
	r.server.Stop()
	for _, p := range r.processes {
		p.granted("a/1", hosts.Poll, "")
		p.refused("a/2", hosts.Push, "", hosts.AtLimit)
	}
}

// silent loses replies of Redis.
type silent struct {
	redis.Hook
	on bool
}

func (s *silent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *silent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if s.on {
			err = &net.OpError{Op: "read", Err: io.EOF}
			cmd.SetErr(err)
		}
		return err
	}
}

func (s *silent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestLostRepliesLeaveNoPermitsInUse(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	lost := &silent{}
	r := newRig(t, 1, two)
	p := r.start(two, func(cfg *hosts.Config) {
		cfg.Redis.(redis.UniversalClient).AddHook(lost)
	})
	hosts.Pump(ctx, r.processes[0].Budgets)
	hosts.Pump(ctx, p.Budgets) // knows both now
	first := p.granted("a/1", hosts.Push, "")
	lost.on = true
	p.refused("a/2", hosts.Push, "", hosts.AtLimit) // but granted in Redis
	done(first, success)
	hosts.Pump(ctx, p.Budgets)
	lost.on = false
	if h := r.state(); h.InUse != 2 {
		t.Fatalf("%d permits in use; want 2, whose ends were lost", h.InUse)
	}
	r.advance(3 * time.Second)
	hosts.Pump(ctx, p.Budgets)
	if h := r.state(); h.InUse != 0 {
		t.Errorf("%d permits in use; want none", h.InUse)
	}
}

func two(cfg *hosts.Config) { cfg.Limit = 2 }

func TestKeysDoNotCollideAndExpire(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := newRig(t, 1, one)
	p := r.processes[0]
	names := []string{"a", "a:c:b", "a:permits", "a{1}", "A", "a b", "ä%3A"}
	for _, name := range names {
		req := request(t, "a/1", hosts.Push, name)
		req.Host = name
		if _, err := p.Enter(ctx, req); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Enter(ctx, request(t, "a/1", hosts.Push, name)); err != nil && name == "a" {
			t.Fatal(err)
		}
		req.Repo = request(t, "a/2", hosts.Push, "").Repo
		if _, err := p.Enter(ctx, req); err == nil {
			t.Fatalf("host %q has more permits than one", name)
		}
	}
	all, err := p.List(ctx)
	if err != nil || len(all) != len(names)+1 {
		t.Fatalf("%d hosts, %v", len(all), err)
	}
	for _, h := range all {
		if h.Name != host && (h.InUse != 1 || h.Waiting != 1) {
			t.Errorf("%+v", h)
		}
	}
	client := r.server.Client()
	keys := client.Keys(ctx, "*").Val()
	for _, key := range keys {
		if !strings.HasPrefix(key, "lockstep:{0}:host") || strings.Count(key, "{") != 1 {
			t.Errorf("key %q", key)
		}
		if ttl := client.PTTL(ctx, key).Val(); ttl <= 0 || ttl > 24*time.Hour {
			t.Errorf("key %q expires in %v", key, ttl)
		}
	}
	if len(keys) < 20 {
		t.Errorf("only %d keys", len(keys))
	}
}

func TestNewRefusesABadConfig(t *testing.T) {
	t.Parallel()
	client := newRig(t, 1).server.Client()
	for name, cfg := range map[string]hosts.Config{
		"no Redis":     {Prefix: "p", Process: "p"},
		"no prefix":    {Redis: client, Process: "p"},
		"no process":   {Redis: client, Prefix: "p"},
		"small total":  {Redis: client, Prefix: "p", Process: "p", Total: 3},
		"negative":     {Redis: client, Prefix: "p", Process: "p", Limit: -1},
		"bad override": {Redis: client, Prefix: "p", Process: "p", Overrides: map[string]hosts.Limits{"h": {}}},
	} {
		if _, err := hosts.New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestFailedWakeIsRepeated(t *testing.T) {
	t.Parallel()
	fail := true
	r := newRig(t, 1)
	var woken []hosts.Waiter
	p := r.start(one, func(cfg *hosts.Config) {
		cfg.Wake = func(_ context.Context, waiters []hosts.Waiter) ([]bool, error) {
			if fail {
				return nil, errors.New("no connection")
			}
			woken = append(woken, waiters...)
			return nil, nil
		}
	})
	first := p.granted("a/1", hosts.Push, "")
	p.refused("a/2", hosts.Push, "", hosts.AtLimit)
	done(first, success)
	hosts.Flush(context.Background(), p.Budgets)
	fail = false
	hosts.Flush(context.Background(), p.Budgets)
	if fmt.Sprint(woken) != "[{ a/2}]" || strings.Count(p.log.String(), "level=WARN") != 1 {
		t.Errorf("woken %q; log:\n%s", woken, p.log)
	}
}

func TestRunWakesBeforeItEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	p := newRig(t, 1, one).processes[0]
	first := p.granted("a/1", hosts.Push, "")
	p.refused("a/2", hosts.Push, "", hosts.AtLimit)
	done(first, success)
	cancel()
	p.Run(ctx)
	if fmt.Sprint(p.woken) != "[{ a/2}]" {
		t.Errorf("woken %q; want the repository whose permit is reserved", p.woken)
	}
}
