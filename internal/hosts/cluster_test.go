package hosts_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"lockstep/internal/hosts"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/testenv"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	server, err := redisx.Parse(redistest.StartCluster(t).URL(), "")
	if err != nil {
		t.Fatal(err)
	}
	client := server.Open()
	defer client.Close()
	r := &rig{t: t} // without a server
	p := r.start(one, func(cfg *hosts.Config) { cfg.Redis = client })
	first := p.granted("a/1", hosts.Push, "token")
	p.refused("a/2", hosts.Poll, "token", hosts.AtLimit)
	hosts.Renew(context.Background(), p.Budgets)
	hosts.Pump(context.Background(), p.Budgets)
	done(first, tooMany(0))
	if h := r.state(); h.Waiting != 1 || len(h.Limited) != 1 {
		t.Errorf("%+v", h)
	}
	r.advance(2 * time.Second)
	hosts.Pump(context.Background(), p.Budgets)
	if got := p.popped(); !slices.Equal(got, []string{"a/1"}) {
		t.Errorf("woken %q; want the refused push before the poll; log:\n%s", got, p.log)
	}
	done(p.granted("a/1", hosts.Push, "token"), success)
	if got := p.popped(); !slices.Equal(got, []string{"a/2"}) {
		t.Errorf("woken %q; log:\n%s", got, p.log)
	}
}
