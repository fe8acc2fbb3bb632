package hosts_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/hosts"
)

func TestRefusedCredentialWaits(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer hosts.Answer
		want   time.Duration
	}{
		"429 with seconds":        {tooMany(time.Minute), time.Minute},
		"429 with a long delay":   {tooMany(1000 * time.Hour), 24 * time.Hour},
		"403 with a quota of 0":   {withQuota(403, 0, 5000, 10*time.Minute), 10 * time.Minute},
		"429 without a delay":     {tooMany(0), time.Second},
		"200 with the last token": {withQuota(200, 0, 5000, time.Minute), time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			r := newRig(t, 2)
			p, other := r.processes[0], r.processes[1]
			p.once("a/1", "token", tc.answer)
			l := p.known("token")
			if l == nil || l.Reason != hosts.RateLimit {
				t.Fatalf("in memory: %v", l)
			}
			left := l.Until.Sub(hosts.Now(p.Budgets))
			if left > tc.want || left < tc.want-2*time.Second {
				t.Errorf("blocked for %v, want %v", left, tc.want)
			}
			refused := other.refused("a/2", hosts.Push, "token", hosts.RateLimit)
			if min := max(left, 30*time.Second); refused.RetryAfter < min-time.Second || refused.RetryAfter > min+time.Minute+time.Second {
				t.Errorf("retry after %v with %v left", refused.RetryAfter, left)
			}
			if other.known("token") == nil {
				t.Error("the other process does not remember the block")
			}
			done(other.granted("a/3", hosts.Push, "second"), success)

			r.advance(tc.want + time.Second)
			hosts.Pump(ctx, p.Budgets)
			if got := p.popped(); !slices.Equal(got, []string{"a/2"}) {
				t.Fatalf("woken %q at the end of the block", got)
			}
			if l := p.blocked("token"); l != nil {
				t.Errorf("still blocked: %v", l)
			}
			done(p.granted("a/2", hosts.Push, "token"), success)
			if log := p.log.String(); strings.Count(log, "level=WARN") != 1 || strings.Count(log, `msg="host no longer limited"`) != 1 {
				t.Errorf("log:\n%s", log)
			}
		})
	}
}

func TestRefusalsWithoutADelayBackOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	p := r.processes[0]
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		p.once("a/1", "token", tooMany(0))
		left := p.known("token").Until.Sub(hosts.Now(p.Budgets))
		if left > want*time.Second || left < want*time.Second-900*time.Millisecond {
			t.Fatalf("blocked for %v, want %d s", left, want)
		}
		r.advance(want * time.Second)
	}
	if n := strings.Count(p.log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings for one time of refusals", n)
	}
	p.once("a/1", "token", success)
	p.once("a/1", "token", tooMany(0))
	if left := p.known("token").Until.Sub(hosts.Now(p.Budgets)); left > time.Second {
		t.Errorf("blocked for %v after a success", left)
	}
}

func TestBurstOfRefusalsIsOneStrike(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	p := r.processes[0]
	var permits []*hosts.Permit
	for i := range 10 {
		permits = append(permits, p.granted(fmt.Sprint("a/", i), hosts.Push, "token"))
	}
	r.advance(100 * time.Millisecond)
	for _, permit := range permits {
		done(permit, tooMany(0))
	}
	if left := p.known("token").Until.Sub(hosts.Now(p.Budgets)); left > time.Second {
		t.Errorf("blocked for %v", left)
	}
}

func TestSlowStartAfterABlock(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	p := r.processes[0]
	p.once("a/1", "token", tooMany(time.Minute))
	r.advance(61 * time.Second)
	for _, want := range []int{1, 2, 4} {
		var permits []*hosts.Permit
		for i := range want {
			permits = append(permits, p.granted(fmt.Sprint("a/", i), hosts.Push, "token"))
		}
		p.refused("b/1", hosts.Push, "token", hosts.SlowStart)
		for _, permit := range permits {
			done(permit, success)
		}
		p.popped()
		done(p.granted("b/1", hosts.Push, "token"), hosts.Answer{Err: context.Canceled}) // says nothing
	}
}

func TestSecondRefusedCredentialBlocksTheHost(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		pause time.Duration
		want  bool
	}{"within a minute": {50 * time.Second, true}, "later": {70 * time.Second, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			p := r.processes[0]
			p.once("a/1", "first", tooMany(2*time.Minute))
			r.advance(tc.pause)
			p.once("a/1", "second", tooMany(2*time.Minute))
			l := p.known("third")
			if (l != nil) != tc.want {
				t.Fatalf("third credential: %v", l)
			}
			if !tc.want {
				done(p.granted("a/1", hosts.Push, "third"), success)
				return
			}
			if l.Reason != hosts.HostLimit || l.Credential != "" {
				t.Errorf("third credential: %+v", l)
			}
			p.refused("a/1", hosts.Push, "third", hosts.HostLimit)
			h := r.state()
			if len(h.Limited) != 2 || h.Limited[0].Name != "first" || h.Reason != hosts.HostLimit || h.Waiting != 1 {
				t.Errorf("%+v", h)
			}
			r.advance(2 * time.Minute)
			hosts.Pump(context.Background(), p.Budgets) // the changes that the host has refused wait, too
			woken := p.poppedWaiters()
			if h := r.state(); h.InUse != 1 || len(woken) == 0 {
				t.Fatalf("woken %+v for %+v; want one permit reserved", woken, h)
			}
			p.granted("a/1", hosts.Push, woken[len(woken)-1].Credential)
			p.refused("a/2", hosts.Push, "fourth", hosts.AtLimit) // slow start
		})
	}
}

func TestBlockOfOneCredentialLeavesTheWaitersOfAnother(t *testing.T) {
	t.Parallel()
	p := newRig(t, 1, one).processes[0]
	permit := p.granted("a/1", hosts.Push, "blocked")
	p.refused("a/2", hosts.Push, "blocked", hosts.AtLimit)
	p.refused("a/3", hosts.Push, "good", hosts.AtLimit)
	done(permit, tooMany(time.Hour))
	if got := p.popped(); !slices.Equal(got, []string{"a/3"}) {
		t.Errorf("woken %q", got)
	}
}

func TestRestOfAQuotaIsSpread(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	p := r.processes[0]
	p.once("a/1", "token", withQuota(200, 500, 5000, time.Hour))
	p.once("a/1", "token", withQuota(200, 499, 5000, time.Hour)) // one in 7.2 s
	limited := p.refused("a/1", hosts.Push, "token", hosts.Quota)
	if limited.Credential != "token" {
		t.Errorf("%+v", limited)
	}
	p.once("a/1", "other", success)
	requests, began := 0, hosts.Now(p.Budgets)
	for range 120 { // a minute, and the time that the test takes
		r.advance(500 * time.Millisecond)
		hosts.Pump(context.Background(), p.Budgets)
		for range p.popped() {
			p.once("a/1", "token", withQuota(200, 499, 5000, time.Hour))
			p.refused("a/1", hosts.Push, "token", hosts.Quota)
			requests++
		}
	}
	if took := hosts.Now(p.Budgets).Sub(began); requests < 7 || requests > int(took/(7200*time.Millisecond))+1 {
		t.Errorf("%d requests in %v, want one in 7.2 s", requests, took)
	}
	r.advance(8 * time.Second)
	hosts.Pump(context.Background(), p.Budgets)
	p.once("a/1", "token", withQuota(200, 5000, 5000, time.Hour))
	p.once("a/1", "token", success)
}

func TestClassify(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	header := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return h
	}
	for name, tc := range map[string]struct {
		answer hosts.Answer
		want   hosts.Outcome
		retry  time.Duration
	}{
		"success":               {hosts.Answer{Status: 200}, hosts.Succeeded, 0},
		"ssh":                   {hosts.Answer{}, hosts.Succeeded, 0},
		"not found":             {hosts.Answer{Status: 404}, hosts.Succeeded, 0},
		"forbidden":             {hosts.Answer{Status: 403, Header: header("X-RateLimit-Remaining", "7")}, hosts.Succeeded, 0},
		"error of a status":     {hosts.Answer{Status: 404, Err: events.Errorf(events.Permanent, events.ClassNotFound, "not found")}, hosts.Succeeded, 0},
		"limited by its class":  {hosts.Answer{Status: 403, Header: header("Retry-After", "1.5"), Err: &events.Error{Class: events.ClassLimited, RetryAfter: 1500 * time.Millisecond}}, hosts.Refused, 1500 * time.Millisecond},
		"date":                  {hosts.Answer{Status: 429, Header: header("Retry-After", "Sun, 01 Mar 2026 12:01:30 GMT")}, hosts.Refused, 90 * time.Second},
		"date in the past":      {hosts.Answer{Status: 429, Header: header("Retry-After", "Sun, 01 Mar 2026 11:01:30 GMT")}, hosts.Refused, 0},
		"date of another clock": {hosts.Answer{Status: 429, Header: header("Retry-After", "Mon, 02 Mar 2026 12:00:20 GMT", "Date", "Mon, 02 Mar 2026 12:00:00 GMT")}, hosts.Refused, 20 * time.Second},
		"reset":                 {hosts.Answer{Status: 429, Header: header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", fmt.Sprint(now.Unix()+33))}, hosts.Refused, 33 * time.Second},
		"reset without X-":      {hosts.Answer{Status: 403, Header: header("RateLimit-Remaining", "0", "RateLimit-Reset", "12")}, hosts.Refused, 12 * time.Second},
		"invalid":               {hosts.Answer{Status: 429, Header: header("Retry-After", "soon")}, hosts.Refused, 0},
		"negative":              {hosts.Answer{Status: 429, Header: header("Retry-After", "-5")}, hosts.Refused, 0},
		"huge":                  {hosts.Answer{Status: 429, Header: header("Retry-After", "99999999999999999999")}, hosts.Refused, 24 * time.Hour},
		"maintenance":           {hosts.Answer{Status: 503, Header: header("Retry-After", "5")}, hosts.Refused, 5 * time.Second},
		"unavailable":           {hosts.Answer{Status: 503}, hosts.Overloaded, 0},
		"refused connection":    {dead, hosts.Failed, 0},
		"cancelled":             {hosts.Answer{Err: context.Canceled}, hosts.Ignored, 0},
		"deadline":              {hosts.Answer{Err: context.DeadlineExceeded}, hosts.Failed, 0},
		"cut off":               {hosts.Answer{Status: 200, Err: fmt.Errorf("pack: %w", fmt.Errorf("invalid"))}, hosts.Ignored, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, retry := hosts.Classify(tc.answer, now)
			if got != tc.want || retry != tc.retry {
				t.Errorf("%s, %v; want %s, %v", got, retry, tc.want, tc.retry)
			}
		})
	}
}
