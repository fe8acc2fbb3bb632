package hosts_test

import (
	"fmt"
	"testing"
	"time"

	"lockstep/internal/hosts"
)

// Repositories that hang, on a host that answers others, leave room for those, and do not open the circuit of the host.
func TestRepositoriesThatHangLeaveRoomOnTheirHost(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]hosts.Answer{"no answer": dead, "server error": broken} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			p, other := r.processes[0], r.processes[1]
			p.once("good/1", "", success)
			for round := range 3 {
				var hung []*hosts.Permit
				for i := range 20 {
					repo := fmt.Sprintf("hung/%d-%d", round, i)
					if permit, _ := p.enter(repo, hosts.Push, ""); permit != nil {
						hung = append(hung, permit)
					}
				}
				if len(hung) != 14 {
					t.Fatalf("%d permits for repositories that hang; want 14 of 16", len(hung))
				}
				for range 5 { // they wait for their turn
					other.once("good/1", "", success)
				}
				r.advance(15 * time.Second)
				for _, permit := range hung {
					done(permit, answer)
				}
				if h := r.state(); h.Reason != "" || h.Limit != 16 {
					t.Fatalf("%+v; want no limit because of these repositories", h)
				}
				r.advance(10 * time.Second) // reservations of those that were woken lapse
			}
		})
	}
}

// Repositories that were answered before hang all at once, and open the circuit. Another push tries the host ahead of time.
func TestAnsweredRepositoryProbesAnOpenCircuit(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	p := r.processes[0]
	var permits []*hosts.Permit
	for i := range 6 {
		p.once(fmt.Sprint("a/", i), "", success)
		permits = append(permits, p.granted(fmt.Sprint("a/", i), hosts.Push, ""))
	}
	p.once("good/1", "", success)
	p.once("good/2", "", success)
	r.advance(15 * time.Second)
	for _, permit := range permits {
		done(permit, dead)
	}
	if h := r.state(); h.Reason != hosts.NoAnswer {
		t.Fatalf("%+v; want an open circuit", h)
	}
	p.refused("a/1", hosts.Push, "", hosts.NoAnswer)
	p.refused("new/1", hosts.Push, "", hosts.NoAnswer)
	probe := p.granted("good/1", hosts.Push, "")
	p.refused("good/2", hosts.Push, "", hosts.NoAnswer) // one at a time
	done(probe, dead)
	p.refused("good/1", hosts.Push, "", hosts.NoAnswer)
	p.refused("good/2", hosts.Push, "", hosts.NoAnswer) // one in five seconds
	open := r.state().Until
	r.advance(6 * time.Second)
	if h := r.state(); h.Until.After(open.Add(time.Second)) {
		t.Errorf("a failed probe ahead of time has prolonged the block to %v", h.Until)
	}
}

func TestProbeAheadOfTimeClosesTheCircuit(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	p := r.processes[0]
	p.once("good/1", "", success)
	for i := range 5 {
		p.once(fmt.Sprint("a/", i), "", success)
	}
	for i := range 5 {
		p.once(fmt.Sprint("a/", i), "", dead)
	}
	p.refused("a/1", hosts.Push, "", hosts.NoAnswer)
	p.once("good/1", "", success)
	if h := r.state(); h.Reason != "" {
		t.Errorf("%+v; want a closed circuit", h)
	}
}

// A host is blocked when it fails for repositories that it has served before.
func TestHostThatFailsForAllIsLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	p := r.processes[0]
	for i := range 3 {
		p.once(fmt.Sprint("a/", i), "", success)
	}
	for i := range 3 {
		p.once(fmt.Sprint("new/", i), "", dead)
	}
	if h := r.state(); h.Limit != 16 {
		t.Fatalf("%+v after failures of repositories that were never answered", h)
	}
	for i := range 5 {
		p.once(fmt.Sprint("a/", i), "", dead)
	}
	if h := r.state(); h.Reason != hosts.NoAnswer {
		t.Errorf("%+v; want an open circuit", h)
	}
}
