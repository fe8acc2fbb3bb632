package hosts_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"lockstep/internal/hosts"
)

func TestProcessKeepsRoomForAnotherHost(t *testing.T) {
	t.Parallel()
	p := newRig(t, 1, func(cfg *hosts.Config) { cfg.Limit, cfg.Total = 100, 12 }).processes[0]
	p.once("a/0", "", success)
	for i := range 9 {
		p.granted(fmt.Sprint("a/", i), hosts.Push, "")
	}
	limited := p.refused("a/9", hosts.Push, "", hosts.AtTotal)
	if limited.RetryAfter > 3*time.Second {
		t.Errorf("retry after %v, but the repository is not queued", limited.RetryAfter)
	}
	other := func(i int, want bool) *hosts.Permit {
		t.Helper()
		permit, err := p.Enter(context.Background(), onHost(t, "other.example", i))
		if (err == nil) != want {
			t.Errorf("request %d to a new host: %v", i, err)
		}
		return permit
	}
	first := other(0, true)
	other(1, false) // it may not answer
	done(first, success)
	other(2, true)
	other(3, true)
	other(4, false)
}

func onHost(t testing.TB, host string, repo int) hosts.Request {
	req := request(t, fmt.Sprintf("on-%s/%d", host, repo), hosts.Push, "")
	req.Host = host
	return req
}

func TestHostsThatDoNotAnswerLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	const hung, each = 300, 8
	ctx := context.Background()
	r := newRig(t, 1)
	p := r.processes[0]
	p.once("a/1", "", success)
	now := func(name string, i int) bool {
		t.Helper()
		permit, err := p.Enter(ctx, onHost(t, name, i))
		if err == nil {
			done(permit, success)
		}
		return err == nil
	}
	inFlight := map[string]int{}
	try := func() {
		for i := range hung {
			name := fmt.Sprintf("hung-%d.example", i)
			for repo := range each {
				if _, err := p.Enter(ctx, onHost(t, name, repo)); err == nil {
					inFlight[name]++
				}
			}
		}
	}
	try()
	if !now(host, 1) {
		t.Error("a host that answers waits for those that do not")
	}
	for i := range 5 {
		r.advance(1100 * time.Millisecond)
		if !now(host, 2) || !now(fmt.Sprintf("new-%d.example", i), 1) {
			t.Errorf("after %d s, a good host waits for those that do not answer", i+1)
		}
		try()
	}
	several := 0
	for _, n := range inFlight {
		if n > 1 {
			several++
		}
	}
	if len(inFlight) != hung || several > 64/each {
		t.Errorf("%d hosts are tried, %d of them with several requests; want %d, and %d at most", len(inFlight), several, hung, 64/each)
	}
}
