package hosts_test

import (
	"context"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/internal/hosts"
	"lockstep/internal/redistest"
)

func TestReaderNeedsNoProcess(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := newRig(t, 1, func(cfg *hosts.Config) { cfg.Limit = 3 })
	client := r.server.Client()
	reader := hosts.Reader{Redis: client, Prefix: "lockstep:{0}:", Limit: 5, Overrides: map[string]hosts.Limits{"other.example": {Permits: 9}}}
	if all, err := reader.List(ctx); err != nil || len(all) != 0 {
		t.Fatalf("%+v, %v; want no hosts", all, err)
	}
	p := r.processes[0]
	p.granted("a/1", hosts.Push, "")
	other := request(t, "a/1", hosts.Push, "")
	other.Host = "other.example"
	if _, err := p.Enter(ctx, other); err != nil {
		t.Fatal(err)
	}
	if err := client.ScriptFlush(ctx).Err(); err != nil { // as after a failover
		t.Fatal(err)
	}
	trips := &redistest.RoundTrips{}
	client.AddHook(trips)
	for range 2 {
		all, err := reader.List(ctx)
		if err != nil || len(all) != 2 || all[0].Name != host || all[0].Limit != 5 || all[1].Limit != 9 || all[1].InUse != 1 || all[1].Idle() {
			t.Fatalf("%+v, %v", all, err)
		}
	}
	if n := trips.Load(); n > 7 { // the first time it also loads the script and asks again
		t.Errorf("%d round trips for two lists, want at most 7", n)
	}
	p.once("a/2", "", success)
	all, err := reader.List(ctx)
	if err != nil || all[0].Limit != 3 {
		t.Errorf("%+v, %v; want the limit of the process that asked", all, err)
	}
}

func TestListTellsWhyRepositoriesWait(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare func(p *process)
		want    hosts.Reason
		blocked bool // until is known
	}{
		"nothing waits": {prepare: func(*process) {}},
		"limit": {want: hosts.AtLimit, prepare: func(p *process) {
			p.granted("a/1", hosts.Push, "token")
			p.granted("a/2", hosts.Push, "token")
			p.refused("a/3", hosts.Push, "token", hosts.AtLimit)
		}},
		"polls": {want: hosts.PollLimit, prepare: func(p *process) {
			p.granted("a/1", hosts.Poll, "token")
			p.refused("a/2", hosts.Poll, "token", hosts.PollLimit)
		}},
		"quota": {want: hosts.Quota, prepare: func(p *process) {
			p.once("a/1", "token", withQuota(200, 1, 1000, time.Hour))
			p.refused("a/2", hosts.Push, "token", hosts.Quota)
		}},
		"rate limit": {want: hosts.RateLimit, blocked: true, prepare: func(p *process) {
			p.once("a/1", "token", tooMany(time.Minute))
		}},
		"host rate limit": {want: hosts.HostLimit, blocked: true, prepare: func(p *process) {
			a, b := p.granted("a/1", hosts.Push, "token"), p.granted("a/2", hosts.Push, "second")
			done(a, tooMany(time.Minute))
			done(b, tooMany(time.Minute))
		}},
		"no answer": {want: hosts.NoAnswer, blocked: true, prepare: func(p *process) {
			for range 5 {
				p.once("a/1", "token", dead)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, func(cfg *hosts.Config) { cfg.Limit = 2 })
			p := r.processes[0]
			tc.prepare(p)
			h := r.state()
			reason, until := h.Why()
			if reason != tc.want || tc.blocked == until.IsZero() || h.Idle() != (tc.want == "") {
				t.Errorf("%q until %v, idle %t; want %q, until known: %t", reason, until, h.Idle(), tc.want, tc.blocked)
			}
			if left := until.Sub(hosts.Now(p.Budgets)); tc.blocked && (left <= 0 || left > time.Minute) {
				t.Errorf("%v left", left)
			}
		})
	}
}

// A block is logged once by one process, whatever happens during it, and so is its end.
func TestABlockIsLoggedOnceWithItsCause(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	p, other := r.processes[0], r.processes[1]
	late := p.granted("a/0", hosts.Push, "token") // its refusal comes during the block
	p.once("a/1", "token", tooMany(time.Minute))
	until := p.known("token").Until
	done(late, tooMany(time.Minute))
	for n := range 20 { // the number of waiters changes
		other.refused("a/"+strconv.Itoa(n), hosts.Push, "token", hosts.RateLimit)
		p.refused("b/"+strconv.Itoa(n), hosts.Poll, "token", hosts.RateLimit)
	}
	r.advance(61 * time.Second)
	hosts.Pump(context.Background(), p.Budgets)
	retried := p.granted(p.popped()[0], hosts.Push, "token")
	done(retried, hosts.Answer{Status: http.StatusTooManyRequests}) // the same block goes on
	r.advance(5 * time.Second)
	hosts.Pump(context.Background(), p.Budgets)
	for _, repo := range p.popped() {
		done(p.granted(repo, hosts.Push, "token"), success)
	}

	var lines []string
	for _, one := range []*process{p, other} {
		for line := range strings.Lines(one.log.String()) {
			lines = append(lines, line)
		}
	}
	text := strings.Join(lines, "")
	if len(lines) != 2 || other.log.String() != "" {
		t.Fatalf("log:\n%s", text)
	}
	at := regexp.QuoteMeta(until.Format("2006-01-02T15:04:05"))
	for i, want := range []string{
		`level=WARN msg="host limited" host=forge.example credential=token reason="rate limit" until=` + at + `\S* waiting=0\n$`,
		`level=INFO msg="host no longer limited" host=forge.example credential=token\n$`,
	} {
		if !regexp.MustCompile(want).MatchString(lines[i]) {
			t.Errorf("line %d: %s, want %s", i, lines[i], want)
		}
	}
}
