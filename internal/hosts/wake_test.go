package hosts_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"lockstep/internal/hosts"
)

// parkedChanges is what Config.Wake finds.
type parkedChanges struct {
	repos []string
	calls []string // repositories that were looked for
}

func (c *parkedChanges) wake(_ context.Context, waiters []hosts.Waiter) ([]bool, error) {
	woken := make([]bool, len(waiters))
	for i, w := range waiters {
		c.calls = append(c.calls, w.Key)
		woken[i] = slices.Contains(c.repos, w.Key)
	}
	return woken, nil
}

// expect calls Wake for what is due after a pause, and compares the repositories looked for.
func (c *parkedChanges) expect(p *process, pause time.Duration, want ...string) {
	p.t.Helper()
	hosts.Advance(p.Budgets, pause)
	hosts.Flush(context.Background(), p.Budgets)
	if !slices.Equal(c.calls, want) {
		p.t.Errorf("looked for changes of %q; want %q", c.calls, want)
	}
	c.calls = nil
}

// A permit may become free before the change that was refused it is parked.
func TestWakeIsRepeatedUntilTheChangeIsParked(t *testing.T) {
	t.Parallel()
	var changes parkedChanges
	p := newRig(t, 1, one, func(cfg *hosts.Config) { cfg.Wake = changes.wake }).processes[0]
	first := p.granted("a/1", hosts.Push, "")
	p.refused("a/2", hosts.Push, "", hosts.AtLimit)
	done(first, success)
	changes.expect(p, 0, "a/2")
	changes.expect(p, 200*time.Millisecond, "a/2")
	changes.repos = []string{"a/2"}
	changes.expect(p, time.Second, "a/2")
	changes.expect(p, time.Second)
	second := p.granted("a/2", hosts.Push, "")

	p.refused("a/3", hosts.Push, "", hosts.AtLimit)
	done(second, success)
	for range 60 { // once a second for five seconds, and once soon
		hosts.Advance(p.Budgets, 100*time.Millisecond)
		hosts.Flush(context.Background(), p.Budgets)
	}
	if n := len(changes.calls); n < 2 || n > 7 {
		t.Errorf("looked %d times for a change that never came; want 2 to 7 times", n)
	}
}

// A change may have been settled while its repository was queued, for example because its watch was removed.
func TestPermitOfAVanishedChangeGoesToTheNext(t *testing.T) {
	t.Parallel()
	changes := parkedChanges{repos: []string{"b/1"}}
	p := newRig(t, 1, one, func(cfg *hosts.Config) { cfg.Wake = changes.wake }).processes[0]
	first := p.granted("a/1", hosts.Push, "")
	for _, repo := range []string{"a/2", "a/3", "a/4", "b/1"} {
		p.refused(repo, hosts.Push, "", hosts.AtLimit)
	}
	done(first, success)
	for _, repo := range []string{"a/2", "a/3", "a/4", "b/1"} {
		hosts.Flush(context.Background(), p.Budgets)
		// If the machine is slow, it looks again for an earlier one.
		if !slices.Contains(changes.calls, repo) || repo != "b/1" && slices.Contains(changes.calls, "b/1") {
			t.Errorf("looked for changes of %q; want %s", changes.calls, repo)
		}
		changes.calls = nil
	}
	p.granted("b/1", hosts.Push, "")
}
