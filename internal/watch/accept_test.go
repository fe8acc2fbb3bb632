package watch_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/watch"
)

// pushed returns a watch's change for a push.
func pushed(t testing.TB, w watch.Watch, id string) events.Change {
	t.Helper()
	c, err := w.Change(id, "/hooks/gh", events.Ref{}, "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (b *bench) accept(in watch.Delivery) watch.Verdict {
	b.t.Helper()
	verdict, err := b.Accept(context.Background(), in)
	if err != nil {
		b.t.Fatal(err)
	}
	return verdict
}

// TestRepeatedDelivery covers what has become of a delivery's changes when it is repeated.
func TestRepeatedDelivery(t *testing.T) {
	docs, ci := of(t, "docs", "acme/widgets", ""), of(t, "ci", "acme/widgets", "")
	server := redistest.StartReal(t) // nothing expires in the embedded Redis
	first, second := pushed(t, docs, "gh/d1/0"), pushed(t, ci, "gh/d1/1")
	for name, tc := range map[string]struct {
		then func(b *bench) // after the delivery was accepted
		want watch.Verdict
		adds int
	}{
		"nothing has settled":           {func(*bench) {}, watch.Duplicate, 0},
		"one has settled well":          {func(b *bench) { b.settle(first, false) }, watch.Duplicate, 0},
		"all have settled well":         {func(b *bench) { b.settle(first, false); b.settle(second, false) }, watch.Duplicate, 0},
		"59 s after":                    {func(b *bench) { b.settle(first, false); b.later(59 * time.Second) }, watch.Duplicate, 0},
		"a minute after":                {func(b *bench) { b.settle(first, false); b.later(time.Minute) }, watch.Accepted, 1},
		"one has failed":                {func(b *bench) { b.settle(second, true) }, watch.Accepted, 1},
		"one has failed, one is well":   {func(b *bench) { b.settle(first, false); b.settle(second, true) }, watch.Accepted, 1},
		"they do not settle for a day":  {func(b *bench) { b.later(24 * time.Hour) }, watch.Duplicate, 0},
		"nor as long as they may":       {func(b *bench) { b.later(watch.Keep) }, watch.Accepted, 2},
		"an entry has vanished":         {func(b *bench) { b.client.XTrimMaxLen(context.Background(), events.DefaultNamespace.Changes(), 1) }, watch.Accepted, 1},
		"all entries have":              {func(b *bench) { b.client.Del(context.Background(), events.DefaultNamespace.Changes()) }, watch.Accepted, 2},
		"another delivery has failed":   {func(b *bench) { b.settle(pushed(b.t, docs, "gh/d2/0"), true) }, watch.Duplicate, 0},
		"another app watches meanwhile": {func(b *bench) { b.put(of(b.t, "scan", "acme/widgets", "")) }, watch.Duplicate, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := benchOn(t, server)
			b.client.FlushAll(t.Context())
			b.put(docs, ci)
			b.drain()
			in := watch.Delivery{Versions: b.versions("acme/widgets"), Changes: []events.Change{first, second}}
			if got := b.accept(in); got != watch.Accepted {
				t.Fatalf("the first: %s", got)
			}
			if changes := b.changes(); len(changes) != 2 || changes[0].ID != "gh/d1/0" || changes[0].App != "docs" || changes[1].App != "ci" || !changes[1].Watched || changes[1].URL != ci.URL {
				t.Fatalf("%+v", changes)
			}
			tc.then(b)
			before, had := b.dump(), len(b.changes())
			if got := b.accept(in); got != tc.want {
				t.Fatalf("the repeat: %s, want %s", got, tc.want)
			}
			if added := len(b.changes()) - had; added != tc.adds {
				t.Errorf("the repeat adds %d changes, want %d", added, tc.adds)
			}
			if tc.want == watch.Duplicate && !maps.Equal(before, b.dump()) {
				t.Error("a duplicate changed something")
			}
			if got := b.accept(in); got != watch.Duplicate {
				t.Errorf("the repeat after that: %s", got)
			}
		})
	}
}

// settle writes what the settlement of a change writes about its delivery.
func (b *bench) settle(change events.Change, failed bool) {
	b.t.Helper()
	for _, update := range watch.Settled(events.DefaultNamespace, change, failed) {
		if update.Clear {
			b.client.Del(context.Background(), update.Key)
		}
		b.client.PExpire(context.Background(), update.Key, update.Expire)
	}
}

// later makes what is known of changes as much older.
func (b *bench) later(d time.Duration) {
	b.t.Helper()
	ctx := context.Background()
	for _, key := range b.client.Keys(ctx, events.DefaultNamespace.Deliveries()+"*").Val() {
		b.client.PExpire(ctx, key, b.client.PTTL(ctx, key).Val()-d) // Redis removes it at once if that is not positive
	}
}

func TestAcceptReturnsStaleForOtherVersions(t *testing.T) {
	b := newBench(t)
	docs := of(t, "docs", "acme/widgets", "")
	b.put(docs)
	const widgets, other = "example.com/acme/widgets", "example.com/acme/other"
	old := b.versions("acme/widgets")[widgets]
	in := watch.Delivery{Changes: []events.Change{pushed(t, docs, "1")}}
	refused := func(name string, versions map[string]string) {
		t.Helper()
		before := b.dump()
		in.Versions = versions
		if got := b.accept(in); got != watch.Stale {
			t.Errorf("%s: %s", name, got)
		}
		if !maps.Equal(before, b.dump()) {
			t.Errorf("%s: something changed", name)
		}
	}
	refused("a watch was added", map[string]string{widgets: ""})
	refused("one of two", map[string]string{widgets: old, other: "1"})
	b.put(of(t, "ci", "acme/widgets", ""))
	refused("one more", map[string]string{widgets: old})
	b.remove(docs.Key(), of(t, "ci", "acme/widgets", "").Key())
	refused("the last watch was removed", map[string]string{widgets: old})
	b.put(docs)
	refused("the same watch was added again", map[string]string{widgets: old})
	in.Versions = b.versions("acme/widgets")
	in.Versions[other] = ""
	if got := b.accept(in); got != watch.Accepted {
		t.Errorf("current version: %s", got)
	}
}

func TestFailedAcceptChangesNothing(t *testing.T) {
	ctx := context.Background()
	for _, spoilt := range []string{"changes", "deliveries:1", "watch:at:example.com/acme/widgets"} {
		b := newBench(t)
		docs := of(t, "docs", "acme/widgets", "")
		b.client.Set(ctx, "lockstep:{0}:"+spoilt, "mine", 0)
		before := b.dump()
		if verdict, err := b.Accept(ctx, watch.Delivery{Versions: map[string]string{"example.com/acme/widgets": ""}, Changes: []events.Change{pushed(t, docs, "1")}}); err == nil {
			t.Errorf("%s is a string: %s", spoilt, verdict)
		}
		if after := b.dump(); !maps.Equal(before, after) {
			t.Errorf("%s: %v", spoilt, after)
		}
	}
}
