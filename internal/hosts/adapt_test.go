package hosts_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/internal/hosts"
)

func TestLimitFollowsTheHost(t *testing.T) {
	t.Parallel()
	slow := hosts.Answer{Status: 200, Latency: 700 * time.Millisecond}
	timeout := hosts.Answer{Status: 200, Err: context.DeadlineExceeded}
	for name, answer := range map[string]hosts.Answer{
		"server error": broken, "no answer": dead, "high latency": slow, "timeout": timeout, "429": tooMany(time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			p := r.processes[0]
			p.once("a/0", "", success)
			var permits []*hosts.Permit
			for i := range 3 {
				permits = append(permits, p.granted(fmt.Sprint("a/", i), hosts.Push, ""))
			}
			r.advance(2 * time.Second)
			for _, permit := range permits {
				done(permit, answer)
			}
			if h := r.state(); h.Limit != 8 {
				t.Fatalf("limit %d after one burst of losses, want it halved once", h.Limit)
			}
			r.advance(2 * time.Second)
			for range 200 {
				if r.state().Limit == 16 {
					return
				}
				p.once("a/1", "", success)
			}
			t.Errorf("limit %d after many successes", r.state().Limit)
		})
	}
}

func TestLossesOfOneRoundTripCountOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	p := r.processes[0]
	first, second := p.granted("a/1", hosts.Push, ""), p.granted("a/2", hosts.Push, "")
	r.advance(10 * time.Second)
	done(first, broken)
	r.advance(10 * time.Second)
	done(second, broken) // began before the limit was halved
	if h := r.state(); h.Limit != 8 {
		t.Errorf("limit %d, want 8", h.Limit)
	}
}

func TestLimitIsAtLeastOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for range 8 {
		r.processes[0].once("a/1", "", broken)
		r.advance(2 * time.Second)
	}
	if h := r.state(); h.Limit != 1 {
		t.Errorf("limit %d", h.Limit)
	}
	r.processes[0].granted("a/1", hosts.Poll, "")
}

func TestLimitGrowsByOnePerRound(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	p := r.processes[0]
	p.once("a/1", "", broken)
	for range 7 {
		p.once("a/1", "", success)
	}
	if h := r.state(); h.Limit != 8 {
		t.Errorf("limit %d after 7 successes at a limit of 8", h.Limit)
	}
	for range 3 {
		p.once("a/1", "", success)
	}
	if h := r.state(); h.Limit != 9 {
		t.Errorf("limit %d after 10 successes at a limit of 8", h.Limit)
	}
}

func TestSlowHostBecomesTheNewNormal(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	p := r.processes[0]
	p.once("a/1", "", success)
	slow := hosts.Answer{Status: 200, Latency: time.Second}
	for range 4 {
		r.advance(4 * time.Minute)
		p.once("a/1", "", slow)
	}
	low := r.state().Limit
	for range 100 {
		p.once("a/1", "", slow)
		r.advance(2 * time.Second)
	}
	if h := r.state(); low >= 16 || h.Limit <= low {
		t.Errorf("limit %d at first, %d after the minimum has moved", low, h.Limit)
	}
}

func TestDeadHostOpensItsCircuit(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	p := r.processes[0]
	for range 4 {
		p.once("a/1", "", dead)
	}
	p.once("a/1", "", success)
	for range 4 {
		p.once("a/1", "", dead) // not consecutive
	}
	if l := p.blocked(""); l != nil {
		t.Fatalf("blocked: %v", l)
	}
	for trip, want := range []time.Duration{5, 10, 20, 40, 80, 160, 300, 300} {
		p.once("a/1", "", dead)
		h := r.state()
		if left := h.Until.Sub(hosts.Now(p.Budgets)); h.Reason != hosts.NoAnswer || left > want*time.Second || left < want*time.Second*6/10 { // some time passes meanwhile
			t.Fatalf("trip %d: %s for %v, want %d s", trip+1, h.Reason, left, want)
		}
		if l := p.known("any"); l == nil || l.Reason != hosts.NoAnswer {
			t.Fatalf("not known in memory: %v", l)
		}
		r.processes[1].refused("a/1", hosts.Push, "", hosts.NoAnswer)
		r.advance(want * time.Second)
		if l := p.blocked("any"); l != nil {
			t.Fatalf("still blocked after its end: %v", l)
		}
	}
	probe := p.granted("a/1", hosts.Push, "")
	p.refused("a/3", hosts.Push, "", hosts.AtLimit) // one probe at a time
	done(probe, success)
	if h := r.state(); h.Limit != 4 || h.Reason != "" {
		t.Errorf("after a success %+v", h)
	}
	for range 12 {
		p.once("a/1", "", success)
	}
	if h := r.state(); h.Limit != 16 {
		t.Errorf("limit %d after 12 more successes", h.Limit)
	}
	log := p.log.String()
	if strings.Count(log, "level=WARN") != 1 || strings.Count(log, `msg="host no longer limited"`) != 1 {
		t.Errorf("log:\n%s", log)
	}
}

func TestFailuresOfEarlierRequestsDoNotProlongAnOpenCircuit(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	p := r.processes[0]
	var permits []*hosts.Permit
	for i := range 10 {
		permits = append(permits, p.granted(fmt.Sprint("a/", i), hosts.Push, ""))
	}
	r.advance(time.Second)
	for _, permit := range permits[:9] {
		done(permit, dead)
	}
	r.advance(6 * time.Second)
	done(permits[9], dead)
	if h := r.state(); h.Reason != "" {
		t.Errorf("%+v", h)
	}
	p.granted("a/1", hosts.Push, "")
}

func TestOwnErrorsSayNothingOfTheHost(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for range 6 {
		r.processes[0].once("a/1", "", hosts.Answer{Err: fmt.Errorf("fetch: %w", context.Canceled)})
	}
	if h := r.state(); h.Limit != 16 || h.Reason != "" {
		t.Errorf("%+v", h)
	}
}

func TestWaitersComeWhenTheHostAnswersAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := newRig(t, 1)
	p := r.processes[0]
	for range 5 {
		p.once("a/1", "", dead)
	}
	for i := range 6 {
		p.refused(fmt.Sprint("b/", i), hosts.Push, "", hosts.NoAnswer)
	}
	hosts.Pump(ctx, p.Budgets)
	if got := p.popped(); got != nil {
		t.Fatalf("woken %q while the circuit is open", got)
	}
	r.advance(6 * time.Second)
	hosts.Pump(ctx, p.Budgets)
	got := p.popped()
	if !slices.Equal(got, []string{"b/0"}) {
		t.Fatalf("woken %q, want one probe", got)
	}
	p.once("b/0", "", success)
	if got := p.popped(); len(got) != 4 {
		t.Errorf("woken %q, want a slow start with 4", got)
	}
}

func TestCircuitClosedByAnotherProcessIsNoticed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	p, other := r.processes[0], r.processes[1]
	slow := other.granted("a/0", hosts.Push, "")
	for range 5 {
		p.once("a/1", "", dead)
	}
	r.advance(21 * time.Second) // the lease of the other's permit lapses, but its request goes on
	p.once("a/1", "", dead)
	for range 5 { // failed probes, each of which doubles the time
		limited := p.refused("a/1", hosts.Push, "", hosts.NoAnswer)
		r.advance(limited.Until.Sub(hosts.Now(p.Budgets)) + time.Second) // the estimate of Redis' clock is off by a round trip
		p.once("a/1", "", dead)
	}
	learned := time.Now()
	limited := p.refused("a/1", hosts.Push, "", hosts.NoAnswer)
	if left := limited.Until.Sub(hosts.Now(p.Budgets)); left < 4*time.Minute {
		t.Fatalf("the circuit is open for %v; want minutes", left)
	}
	done(slow, success)
	if p.blocked("") == nil && remembers(learned) {
		t.Error("the circuit is forgotten at once")
	}
	r.advance(600 * time.Millisecond)
	if limited := p.blocked(""); limited != nil {
		t.Errorf("%v, 0.6 s after another process closed the circuit", limited)
	}
	done(p.granted("a/1", hosts.Push, ""), success)
}
