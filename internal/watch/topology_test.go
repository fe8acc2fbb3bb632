package watch_test

import (
	"context"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/watch"
)

func TestRegistryOnRedisCluster(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server, err := redisx.Parse(redistest.StartCluster(t).URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	client := server.Open()
	defer client.Close()
	b := &bench{watch.NewRegistry(client, events.DefaultNamespace), t, client}
	docs := of(t, "docs", "acme/widgets", "")
	b.put(docs, of(t, "docs", "acme/other", ""))
	relied := b.versions("acme/widgets")
	relied["example.com/acme/none"] = ""
	in := watch.Delivery{Versions: relied, Changes: []events.Change{pushed(t, docs, "1")}}
	if got := b.accept(in); got != watch.Accepted {
		t.Error(got)
	}
	b.ago("acme/widgets", time.Hour)
	if n, next := b.enqueueDue(10, time.Minute); n != 1 || next <= 0 {
		t.Errorf("%d due, next in %v", n, next)
	}
	if n, err := b.Move(ctx, docs.Repo, path(t, "acme/gadgets"), "https://example.com/acme/gadgets"); n != 1 || err != nil {
		t.Errorf("%d moved, %v", n, err)
	}
	if page, err := b.List(ctx, watch.Query{}); err != nil || len(page.Watches) != 2 {
		t.Errorf("%+v, %v", page, err)
	}
	if n := b.remove(of(t, "docs", "acme/gadgets", "").Key()); n != 1 {
		t.Errorf("%d removed", n)
	}
}
