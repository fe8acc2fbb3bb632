package hosts_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"lockstep/internal/hosts"
)

// clear lifts blocks and returns them as text.
func (p *process) clear(credential *string) []string {
	p.t.Helper()
	lifted, err := p.Clear(context.Background(), host, credential)
	if err != nil {
		p.t.Fatal(err)
	}
	var found []string
	for _, l := range lifted {
		if left := l.Until.Sub(hosts.Now(p.Budgets)); left <= 0 || left > 25*time.Hour {
			p.t.Errorf("%+v: %v left", l, left)
		}
		found = append(found, string(l.Reason)+" "+l.Credential)
	}
	return found
}

func TestLiftedBlockIsForgottenByAllProcesses(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := newRig(t, 3)
	p, other := r.processes[0], r.processes[1]
	p.once("a/1", "token", tooMany(1000*time.Hour))
	p.once("a/1", "second", success)
	other.refused("a/2", hosts.Push, "token", hosts.RateLimit)
	for i := range 300 { // from memory
		for p.Blocked(request(t, fmt.Sprint("b/", i), hosts.Poll, "token")) == nil {
			if p.known("token") == nil {
				t.Fatal("not blocked in memory")
			}
		}
	}
	hosts.Pump(ctx, p.Budgets)
	if h := r.state(); h.Waiting != 302 {
		t.Fatalf("%d repositories wait; want 302: those refused by the host, Redis, and this process", h.Waiting)
	}
	name := "second"
	if got := p.clear(&name); len(got) != 0 {
		t.Errorf("lifted %q; the second credential is not limited", got)
	}
	name = "token"
	cleared := time.Now()
	if got := p.clear(&name); !slices.Equal(got, []string{"rate limit token"}) {
		t.Fatalf("lifted %q", got)
	}
	if h := r.state(); len(h.Limited) != 0 {
		t.Errorf("%+v", h)
	}
	hosts.Pump(ctx, p.Budgets)
	got := p.popped()
	if got != nil && remembers(cleared) {
		t.Errorf("woken %q while processes remember the block", got)
	}
	r.advance(500 * time.Millisecond)
	hosts.Pump(ctx, r.processes[2].Budgets)
	if got = append(got, r.processes[2].popped()...); !slices.Equal(got, []string{"a/2"}) {
		t.Errorf("woken %q; want one change first", got)
	}
	for _, one := range r.processes {
		if l := one.blocked("token"); l != nil {
			t.Errorf("a process remembers %v", l)
		}
	}
	done(p.granted("a/2", hosts.Push, "token"), success)
	if got := p.popped(); len(got) != 2 {
		t.Errorf("woken %q; want two changes after a success", got)
	}
}

func TestLiftedBlocksOfAHost(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, tc := range map[string]struct {
		limit func(p *process)
		want  []string
	}{
		"no answer": {want: []string{"no answer "}, limit: func(p *process) {
			for range 5 {
				p.once("a/1", "", dead)
			}
		}},
		"several credentials": {want: []string{"host rate limit ", "rate limit first", "rate limit second"}, limit: func(p *process) {
			p.once("a/1", "first", tooMany(time.Hour))
			p.once("a/1", "second", tooMany(time.Hour))
		}},
		"anonymous": {want: []string{"rate limit "}, limit: func(p *process) { p.once("a/1", "", tooMany(time.Hour)) }},
		"quota": {want: []string{"quota "}, limit: func(p *process) {
			p.once("a/1", "", withQuota(200, 1, 1000, time.Hour))
		}},
		"nothing": {limit: func(p *process) { p.once("a/1", "", success) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			p := r.processes[0]
			tc.limit(p)
			if tc.want != nil {
				if _, limited := p.enter("a/2", hosts.Push, ""); limited == nil {
					t.Fatal("not limited")
				}
			}
			if got := p.clear(nil); !slices.Equal(got, tc.want) {
				t.Fatalf("lifted %q; want %q", got, tc.want)
			}
			if got := p.clear(nil); len(got) != 0 {
				t.Errorf("lifted %q again", got)
			}
			if tc.want == nil {
				return
			}
			r.advance(500 * time.Millisecond)
			hosts.Pump(ctx, p.Budgets)
			if got := p.popped(); !slices.Contains(got, "a/2") {
				t.Fatalf("woken %q", got)
			}
			done(p.granted("a/2", hosts.Push, ""), success)
			if reason, _ := r.state().Why(); reason != "" {
				t.Errorf("limited: %s", reason)
			}
		})
	}
}

func TestClearOfAnUnknownHostLeavesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	if got := r.processes[0].clear(nil); got != nil {
		t.Errorf("lifted %q", got)
	}
	if keys := r.server.Client().Keys(context.Background(), "*").Val(); len(keys) != 0 {
		t.Errorf("keys %q", keys)
	}
}
