package hosts_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/internal/hosts"
	"lockstep/internal/testenv"
)

// model is a plain account of permits and waiters, kept from what callers see. It does not know the limit.
type model struct {
	*rig
	random   *rand.Rand
	permits  []*heldPermit
	reserved map[string]time.Time // end of the reservation, by waiter
	waiting  map[string]hosts.Request
	slowest  time.Duration // of the operations so far
}

type heldPermit struct {
	owner  *process // nil once it has been killed
	permit *hosts.Permit
	req    hosts.Request
	ends   time.Time
	unsure bool // renewed at about the moment at which it would have ended
}

// TestModel runs random operations, and compares the permits in use with the model after each. At the end the host
// recovers, and every waiting repository must get a permit.
func TestModel(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	for seed := range testenv.Form(6, 60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := &model{
				rig:    newRig(t, 3, func(cfg *hosts.Config) { cfg.Limit = 6 }),
				random: rand.New(rand.NewPCG(uint64(seed), 1)), waiting: map[string]hosts.Request{}, reserved: map[string]time.Time{},
			}
			m.processes[0].once("r/0", "", success)
			for range 300 {
				began := time.Now()
				m.operate()
				m.took(began)
				m.check()
			}
			m.recover()
			for _, p := range m.processes {
				if strings.Contains(p.log.String(), "redis failed") {
					t.Errorf("a script failed:\n%s", p.log)
				}
			}
		})
	}
}

func (m *model) operate() {
	p := m.processes[m.random.IntN(3)]
	switch n := m.random.IntN(100); {
	case n < 45:
		kind := []hosts.Kind{hosts.Push, hosts.Retry, hosts.Poll}[m.random.IntN(3)]
		credential := []string{"", "one", "two"}[m.random.IntN(3)]
		m.enter(p, request(m.t, fmt.Sprint("r/", m.random.IntN(20)), kind, credential))
	case n < 65 && len(m.permits) > 0:
		m.done(m.random.IntN(len(m.permits)), m.answer())
	case n < 84:
		m.advance(time.Duration(m.random.IntN(8000)) * time.Millisecond)
	case n < 86: // a process is killed, and replaced
		for _, held := range m.permits {
			if held.owner == p {
				held.owner = nil
			}
		}
		i := slices.Index(m.processes, p)
		fresh := m.start(func(cfg *hosts.Config) { cfg.Limit = 6 })
		m.processes[i], m.processes = fresh, m.processes[:3]
		hosts.Advance(fresh.Budgets, hosts.Now(m.processes[(i+1)%3].Budgets).Sub(hosts.Now(fresh.Budgets)).Round(time.Millisecond))
	case n < 95:
		began := time.Now()
		hosts.Renew(context.Background(), p.Budgets)
		m.took(began)
		for _, held := range m.permits {
			if left := held.ends.Sub(m.now()); held.owner == p && left > -m.fuzzy() {
				held.unsure = held.unsure || left < m.fuzzy()
				held.ends = m.now().Add(20 * time.Second)
			}
		}
	default:
		hosts.Pump(context.Background(), p.Budgets)
	}
	m.collect()
}

func (m *model) answer() hosts.Answer {
	answers := []hosts.Answer{success, success, success, success, dead, broken, tooMany(0), tooMany(7 * time.Second),
		{Err: context.Canceled}, withQuota(200, 10, 1000, time.Minute), withQuota(200, 900, 1000, time.Minute)}
	return answers[m.random.IntN(len(answers))]
}

func (m *model) now() time.Time { return hosts.Now(m.processes[0].Budgets) }

func waiterOf(req hosts.Request) string { return req.Credential + " " + req.Repo.Key() }

func (m *model) enter(p *process, req hosts.Request) bool {
	m.t.Helper()
	began := time.Now()
	permit, err := p.Enter(context.Background(), req)
	m.collect()
	delete(m.reserved, waiterOf(req)) // used, or given back
	if err != nil {
		m.waiting[waiterOf(req)] = req
		return false
	}
	delete(m.waiting, waiterOf(req))
	m.permits = append(m.permits, &heldPermit{owner: p, permit: permit, req: req, ends: m.now().Add(20 * time.Second)})
	state := m.state()
	m.took(began)
	if low, _, polls := m.count(); low > state.Limit || req.Kind == hosts.Poll && polls > max(1, state.Limit/2) {
		m.t.Fatalf("granted %d permits, %d of them to polls; the limit is %d", low, polls, state.Limit)
	}
	return true
}

func (m *model) done(i int, a hosts.Answer) {
	held := m.permits[i]
	if held.owner == nil {
		return // its process has been killed
	}
	m.permits = slices.Delete(m.permits, i, i+1)
	done(held.permit, a)
}

// collect notes which waiters have been woken: a permit is reserved for each.
func (m *model) collect() {
	for _, p := range m.processes {
		for _, w := range p.poppedWaiters() {
			m.reserved[w.Credential+" "+w.Key] = m.now().Add(5 * time.Second)
		}
	}
}

// took notes how long an operation took, of which the model cannot know the moments of its calls.
func (m *model) took(began time.Time) { m.slowest = max(m.slowest, time.Since(began)) }

// fuzzy returns the uncertainty of an end: real time passes during calls, and before a process learns Redis' clock.
func (m *model) fuzzy() time.Duration { return 100*time.Millisecond + 2*m.slowest }

// count returns the number of permits certainly in use, the most there may be, and how many polls are certain.
func (m *model) count() (low, high, polls int) {
	now := m.now()
	m.permits = slices.DeleteFunc(m.permits, func(held *heldPermit) bool { return now.After(held.ends.Add(m.fuzzy())) })
	for _, held := range m.permits {
		high++
		if !held.unsure && now.Before(held.ends.Add(-m.fuzzy())) {
			low++
			if held.req.Kind == hosts.Poll {
				polls++
			}
		}
	}
	for name, ends := range m.reserved {
		if now.After(ends.Add(m.fuzzy())) {
			delete(m.reserved, name)
			continue
		}
		high++
	}
	return low, high, polls
}

func (m *model) check() {
	m.t.Helper()
	began := time.Now()
	h := m.state()
	m.took(began)
	low, high, _ := m.count()
	if h.InUse < low || h.InUse > high || h.Limit < 1 || h.Limit > 6 {
		m.t.Fatalf("%d permits in use with a limit of %d; the model says %d to %d", h.InUse, h.Limit, low, high)
	}
}

// recover lets the host answer every request, and serves only repositories that are woken.
func (m *model) recover() {
	m.t.Helper()
	for range 200 {
		for i := len(m.permits) - 1; i >= 0; i-- {
			m.done(i, success)
		}
		hosts.Pump(context.Background(), m.processes[0].Budgets)
		woken := m.reserved
		m.collect()
		for name := range woken {
			if req, ok := m.waiting[name]; ok {
				m.enter(m.processes[1], req)
			}
		}
		m.check()
		if m.state().Waiting == 0 && len(m.permits) == 0 {
			return
		}
		m.advance(3 * time.Second)
	}
	m.t.Fatalf("repositories still wait: %+v; %d permits", m.state(), len(m.permits))
}
