package hosts_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"lockstep/internal/hosts"
)

func one(cfg *hosts.Config) { cfg.Limit = 1 }

func TestHostHasOneLimitOverAllProcesses(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	var permits []*hosts.Permit
	for i := range 16 {
		permits = append(permits, r.processes[i%3].granted(fmt.Sprint("a/", i), hosts.Push, "token"))
	}
	limited := r.processes[0].refused("a/17", hosts.Push, "token", hosts.AtLimit)
	if limited.RetryAfter < 30*time.Second || limited.RetryAfter > 90*time.Second {
		t.Errorf("retry after %v, want 30 s to 90 s", limited.RetryAfter)
	}
	if h := r.state(); h.InUse != 16 || h.Waiting != 1 || h.Limit != 16 {
		t.Errorf("%+v", h)
	}
	done(permits[1], success)
	done(permits[1], success) // has no effect
	if got := r.processes[1].popped(); !slices.Equal(got, []string{"a/17"}) {
		t.Fatalf("woken %q, want the waiting repository", got)
	}
	r.processes[2].refused("a/18", hosts.Push, "token", hosts.AtLimit) // the free permit is reserved
	done(r.processes[2].granted("a/17", hosts.Push, "token"), success)
}

func TestOptionalRequestIsNotQueued(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, one)
	req := request(t, "a/1", hosts.Push, "")
	req.Optional = true
	permit, err := r.processes[0].Enter(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	req = request(t, "a/2", hosts.Push, "")
	req.Optional = true
	if _, err := r.processes[0].Enter(context.Background(), req); err == nil {
		t.Error("admitted beyond the limit")
	}
	if h := r.state(); h.InUse != 1 || h.Waiting != 0 {
		t.Errorf("%+v", h)
	}
	done(permit, success)
	if h := r.state(); h.InUse != 0 {
		t.Errorf("%+v: the permit is reserved", h)
	}
}

func TestOtherHostIsNotAffected(t *testing.T) {
	t.Parallel()
	p := newRig(t, 1, one).processes[0]
	p.granted("a/1", hosts.Push, "")
	req := request(t, "b/1", hosts.Push, "")
	req.Host = "forge.example:8443"
	if _, err := p.Enter(context.Background(), req); err != nil {
		t.Fatal(err)
	}
}

func TestOverrideSetsTheLimit(t *testing.T) {
	t.Parallel()
	p := newRig(t, 1, func(cfg *hosts.Config) { cfg.Overrides = map[string]hosts.Limits{host: {Permits: 2}} }).processes[0]
	p.granted("a/1", hosts.Push, "")
	p.granted("a/2", hosts.Push, "")
	p.refused("a/3", hosts.Push, "", hosts.AtLimit)
}

func TestPermitsOfAKilledProcessLapse(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := newRig(t, 2, func(cfg *hosts.Config) { cfg.Limit = 2 })
	killed, alive := r.processes[0], r.processes[1]
	killed.granted("a/1", hosts.Push, "")
	kept := alive.granted("a/2", hosts.Push, "")
	alive.refused("a/3", hosts.Push, "", hosts.AtLimit)
	for range 5 {
		r.advance(5 * time.Second)
		hosts.Renew(ctx, alive.Budgets)
	}
	hosts.Pump(ctx, alive.Budgets)
	if got := alive.popped(); !slices.Equal(got, []string{"a/3"}) {
		t.Fatalf("woken %q after the permit of the killed process lapsed", got)
	}
	alive.granted("a/3", hosts.Push, "")
	alive.refused("a/4", hosts.Push, "", hosts.AtLimit) // the renewed permit still counts
	done(kept, success)
}

func TestReservedPermitThatIsNotUsedLapses(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, one)
	p := r.processes[0]
	first := p.granted("a/1", hosts.Push, "")
	p.refused("a/2", hosts.Push, "", hosts.AtLimit)
	p.refused("a/3", hosts.Push, "", hosts.AtLimit)
	done(first, success)
	if got := p.popped(); !slices.Equal(got, []string{"a/2"}) {
		t.Fatalf("woken %q", got)
	}
	r.advance(6 * time.Second) // a/2 does not come
	hosts.Pump(context.Background(), p.Budgets)
	if got := p.popped(); !slices.Equal(got, []string{"a/3"}) {
		t.Fatalf("woken %q after the reservation lapsed", got)
	}
}

func TestNewcomerDoesNotOvertakeWaiters(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, one)
	p := r.processes[0]
	r.processes[1].granted("a/1", hosts.Push, "") // and is killed
	p.refused("a/2", hosts.Push, "", hosts.AtLimit)
	p.refused("a/3", hosts.Push, "other", hosts.AtLimit)
	r.advance(21 * time.Second)
	p.refused("a/4", hosts.Push, "third", hosts.AtLimit)
	if got := p.popped(); !slices.Equal(got, []string{"a/2"}) {
		t.Fatalf("woken %q, want the first waiter", got)
	}
	done(p.granted("a/2", hosts.Push, ""), success)
	if got := p.popped(); !slices.Equal(got, []string{"a/3"}) {
		t.Errorf("woken %q, want the next waiter", got)
	}
}

func TestWaiterThatComesFirstIsNotWoken(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, one)
	p := r.processes[0]
	r.processes[1].granted("a/1", hosts.Push, "") // and is killed
	p.refused("a/2", hosts.Push, "", hosts.AtLimit)
	r.advance(21 * time.Second)
	p.granted("a/2", hosts.Push, "")
	if got := p.popped(); got != nil {
		t.Errorf("woken %q, but it has its permit", got)
	}
}

func TestBothCredentialsOfARepositoryAreServed(t *testing.T) {
	t.Parallel()
	p := newRig(t, 1, func(cfg *hosts.Config) { cfg.Limit = 2 }).processes[0]
	first, second := p.granted("a/1", hosts.Push, ""), p.granted("a/2", hosts.Push, "")
	p.refused("a/3", hosts.Push, "one", hosts.AtLimit)
	p.refused("a/3", hosts.Push, "two", hosts.AtLimit)
	done(first, success)
	done(second, success)
	if got := p.poppedWaiters(); !slices.Equal(got, []hosts.Waiter{{Credential: "one", Key: "a/3"}, {Credential: "two", Key: "a/3"}}) {
		t.Fatalf("woken %q", got)
	}
	p.granted("a/3", hosts.Push, "two")
	p.granted("a/3", hosts.Push, "one")
}

func TestReservedPermitIsNotUsedAtALowerLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, func(cfg *hosts.Config) { cfg.Limit = 2 })
	p := r.processes[0]
	for i := range 5 {
		p.once(fmt.Sprint("a/", i), "", success)
	}
	first, second := p.granted("a/1", hosts.Push, ""), p.granted("a/2", hosts.Push, "")
	p.refused("a/3", hosts.Push, "", hosts.AtLimit)
	p.refused("a/4", hosts.Push, "", hosts.AtLimit)
	r.advance(2 * time.Second)
	done(first, success)
	p.granted("a/3", hosts.Push, "")
	done(second, broken) // the limit is 1 now
	p.refused("a/4", hosts.Push, "", hosts.AtLimit)
}

func TestPushesGoBeforeRetriesBeforePolls(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, one)
	p := r.processes[0]
	p.once("old/push", "", success) // served recently
	r.advance(time.Minute)
	permit := p.granted("a/first", hosts.Push, "")
	for _, w := range []struct {
		repo string
		kind hosts.Kind
	}{{"a/poll", hosts.Poll}, {"a/retry", hosts.Retry}, {"old/push", hosts.Push}, {"a/push", hosts.Push}, {"a/push2", hosts.Push}} {
		p.refused(w.repo, w.kind, "", hosts.AtLimit)
		r.advance(time.Millisecond)
	}
	p.refused("a/poll2", hosts.Poll, "", hosts.AtLimit)
	p.refused("a/poll2", hosts.Push, "", hosts.AtLimit) // a push of a queued poll
	for _, want := range []string{"a/push", "a/push2", "a/poll2", "old/push", "a/retry", "a/poll"} {
		done(permit, success)
		if got := p.popped(); !slices.Equal(got, []string{want}) {
			t.Fatalf("woken %q, want %s", got, want)
		}
		kind := hosts.Push
		if want == "a/poll" {
			kind = hosts.Poll
		}
		permit = r.processes[1].granted(want, kind, "")
		r.processes[0], r.processes[1] = r.processes[1], r.processes[0]
		p = r.processes[0]
	}
	done(permit, success)
	if h := r.state(); h.Waiting != 0 || h.InUse != 0 {
		t.Errorf("at the end %+v", h)
	}
}

func TestPollsUseAtMostHalf(t *testing.T) {
	t.Parallel()
	p := newRig(t, 1, func(cfg *hosts.Config) { cfg.Limit = 4 }).processes[0]
	first := p.granted("a/1", hosts.Poll, "")
	p.granted("a/2", hosts.Poll, "")
	p.refused("a/3", hosts.Poll, "", hosts.PollLimit)
	push := p.granted("a/4", hosts.Push, "")
	p.granted("a/5", hosts.Push, "")
	done(push, success)
	if got := p.popped(); got != nil {
		t.Errorf("woken %q, but polls have their half", got)
	}
	done(first, success)
	if got := p.popped(); !slices.Equal(got, []string{"a/3"}) {
		t.Errorf("woken %q, want the poll", got)
	}
	p.granted("a/3", hosts.Poll, "")
	p.refused("a/6", hosts.Poll, "", hosts.PollLimit)
}

func TestOrderSpansCredentials(t *testing.T) {
	t.Parallel()
	p := newRig(t, 1, one).processes[0]
	permit := p.granted("a/0", hosts.Push, "busy")
	for i := range 6 {
		p.refused(fmt.Sprint("busy/", i), hosts.Retry, "busy", hosts.AtLimit)
	}
	p.refused("quiet/1", hosts.Push, "quiet", hosts.AtLimit)
	done(permit, success)
	if got := p.popped(); !slices.Equal(got, []string{"quiet/1"}) {
		t.Errorf("woken %q, want the push of another credential before retries", got)
	}
}

func TestManyCredentialsAreAllServed(t *testing.T) {
	t.Parallel()
	p := newRig(t, 1, one).processes[0]
	permit := p.granted("a/0", hosts.Push, "")
	credential := map[string]string{}
	for i := range 20 {
		key := fmt.Sprint("b/", i)
		credential[key] = fmt.Sprint("token", i)
		p.refused(key, hosts.Push, credential[key], hosts.AtLimit)
	}
	for len(credential) > 0 {
		done(permit, success)
		got := p.popped()
		if len(got) != 1 {
			t.Fatalf("woken %q with %d waiting", got, len(credential))
		}
		permit = p.granted(got[0], hosts.Push, credential[got[0]])
		delete(credential, got[0])
	}
}

func TestJobKeepsItsPermitForTheNextRequest(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := newRig(t, 1, one)
	p := r.processes[0]
	more := success
	more.More = true
	done(p.granted("a/1", hosts.Push, ""), more)
	p.refused("a/2", hosts.Push, "", hosts.AtLimit)
	second := p.granted("a/1", hosts.Push, "")
	done(second, more)
	p.Leave(ctx, request(t, "a/1", hosts.Push, "").Repo)
	p.Leave(ctx, request(t, "a/1", hosts.Push, "").Repo)
	if got := p.popped(); !slices.Equal(got, []string{"a/2"}) {
		t.Fatalf("woken %q after the job left", got)
	}
	p.refused("a/1", hosts.Push, "", hosts.AtLimit)

	done(p.granted("a/2", hosts.Push, ""), more) // and does not leave
	r.advance(15 * time.Second)                  // its job waits for a slot
	hosts.Renew(ctx, p.Budgets)
	hosts.Pump(ctx, p.Budgets)
	if hosts.Permits(p.Budgets) != 1 || r.state().InUse != 1 {
		t.Fatalf("%d permits, %+v; want one kept", hosts.Permits(p.Budgets), r.state())
	}
	r.advance(46 * time.Second)
	hosts.Pump(ctx, p.Budgets)
	if got := p.popped(); !slices.Equal(got, []string{"a/1"}) || hosts.Permits(p.Budgets) != 0 {
		t.Errorf("woken %q with %d permits after a kept permit expired", got, hosts.Permits(p.Budgets))
	}
}

func TestRunWakesWaitersOfOtherProcesses(t *testing.T) {
	t.Parallel()
	woken := make(chan string, 10)
	r := newRig(t, 1, one)
	waker := r.start(one, func(cfg *hosts.Config) {
		cfg.Wake = func(_ context.Context, waiters []hosts.Waiter) ([]bool, error) {
			for _, w := range waiters {
				woken <- w.Key
			}
			return nil, nil
		}
	})
	killed := r.processes[0]
	killed.granted("a/1", hosts.Push, "")
	killed.refused("a/2", hosts.Push, "", hosts.AtLimit)
	r.advance(21 * time.Second)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); waker.Run(ctx) }()
	select {
	case key := <-woken:
		if key != "a/2" {
			t.Errorf("woken %q", key)
		}
	case <-time.After(30 * time.Second):
		t.Error("not woken")
	}
	cancel()
	<-stopped
}
