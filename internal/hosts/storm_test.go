package hosts_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"lockstep/internal/hosts"
)

// storm simulates workers that have one parked change for each of many repositories. Time advances in steps of 200 ms;
// a request takes one step.
type storm struct {
	*rig
	due      map[string]time.Time // by repository; absent once its change is done
	flying   []flight
	requests int
}

type flight struct {
	process *process
	repo    string
	permit  *hosts.Permit
}

// step lets a step pass, with the host giving the same answer to all requests.
func (s *storm) step(answer hosts.Answer) {
	s.advance(200 * time.Millisecond)
	landed := s.flying
	s.flying = nil
	for _, f := range landed {
		done(f.permit, answer)
		if answer.Status == 200 {
			delete(s.due, f.repo)
			continue
		}
		s.due[f.repo] = hosts.Now(f.process.Budgets)
	}
	for _, p := range s.processes {
		hosts.Pump(context.Background(), p.Budgets)
		for _, key := range p.popped() {
			if _, ok := s.due[key]; ok {
				s.due[key] = time.Time{}
			}
		}
	}
	i, now := 0, hosts.Now(s.processes[0].Budgets)
	for repo, at := range s.due {
		if at.After(now) {
			continue
		}
		p := s.processes[i%len(s.processes)]
		i++
		if l := p.Blocked(request(s.t, repo, hosts.Push, "token")); l != nil {
			s.due[repo] = now.Add(l.RetryAfter)
		} else if permit, l := p.enter(repo, hosts.Push, "token"); l != nil {
			s.due[repo] = now.Add(l.RetryAfter)
		} else {
			s.requests++
			s.flying = append(s.flying, flight{p, repo, permit})
			s.due[repo] = now.Add(time.Hour)
		}
	}
}

func TestTenThousandRepositoriesOnALimitedHost(t *testing.T) {
	t.Parallel()
	s := &storm{rig: newRig(t, 3), due: map[string]time.Time{}}
	n := 10_000
	if !s.server.Real {
		n = 2_000 // the embedded Redis runs scripts slowly
	}
	for i := range n {
		s.due[fmt.Sprint("a/", i)] = time.Time{}
	}
	for minute := range 3 {
		before := s.requests
		for range 300 {
			s.step(tooMany(time.Minute))
		}
		if sent := s.requests - before; sent > 20 || sent == 0 {
			t.Errorf("minute %d: %d requests", minute+1, sent)
		}
	}
	steps := 0
	for ; len(s.due) > 0 && steps < n; steps++ {
		s.step(success)
	}
	if len(s.due) > 0 {
		t.Fatalf("%d repositories are not synced %d steps after the host has recovered; %+v", len(s.due), steps, s.state())
	}
	if least := n / 16; steps > least*3/2+600 {
		t.Errorf("synced after %d steps; at least %d are needed", steps, least)
	}
	t.Logf("%d requests, all synced %d steps after the host has recovered", s.requests, steps)
}
