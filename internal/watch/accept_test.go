package watch_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

const ledger = "lockstep:{0}:deliveries:gh"

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

func TestAcceptDeduplicatesDeliveries(t *testing.T) {
	b := newBench(t)
	docs, ci := of(t, "docs", "acme/widgets", ""), of(t, "ci", "acme/widgets", "")
	b.put(docs, ci)
	b.drain()
	versions := b.versions("acme/widgets")
	in := watch.Delivery{Source: "gh", ID: "d1", Versions: versions, Changes: []events.Change{pushed(t, docs, "gh/d1/1"), pushed(t, ci, "gh/d1/2")}}
	for i, want := range []watch.Verdict{watch.Accepted, watch.Duplicate} {
		if got := b.accept(in); got != want {
			t.Errorf("%d: %s, want %s", i, got, want)
		}
	}
	changes := b.changes()
	if len(changes) != 2 || changes[0].ID != "gh/d1/1" || changes[0].App != "docs" || changes[1].App != "ci" || !changes[1].Watched || changes[1].URL != ci.URL {
		t.Errorf("%+v", changes)
	}
	// IDs are scoped by source, and a delivery without an ID is never a duplicate.
	other := in
	other.Source = "lab"
	none := watch.Delivery{Versions: versions, Changes: in.Changes}
	for name, in := range map[string]watch.Delivery{"another source": other, "no id": none, "no id again": none} {
		if got := b.accept(in); got != watch.Accepted {
			t.Errorf("%s: %s", name, got)
		}
	}
	if _, err := b.Accept(context.Background(), watch.Delivery{ID: "d1"}); err == nil {
		t.Error("Accept without a source succeeded")
	}
}

func TestAcceptReturnsStaleForOtherVersions(t *testing.T) {
	b := newBench(t)
	docs := of(t, "docs", "acme/widgets", "")
	b.put(docs)
	const widgets, other = "example.com/acme/widgets", "example.com/acme/other"
	old := b.versions("acme/widgets")[widgets]
	in := watch.Delivery{Source: "gh", ID: "d1", Changes: []events.Change{pushed(t, docs, "1")}}
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

// fill adds n deliveries accepted at the given time to the ledger.
func (b *bench) fill(n int, at time.Time) {
	b.t.Helper()
	members := make([]redis.Z, 0, n)
	for i := range n {
		members = append(members, redis.Z{Score: float64(at.UnixMilli()), Member: fmt.Sprint(at.UnixMilli(), "-", i)})
	}
	for part := range slices.Chunk(members, 10_000) {
		if err := b.client.ZAdd(context.Background(), ledger, part...).Err(); err != nil {
			b.t.Fatal(err)
		}
	}
}

func TestLedgerDropsExpiredDeliveries(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	now := b.client.Time(ctx).Val()
	in := watch.Delivery{Source: "gh", ID: "seen"}
	b.client.ZAdd(ctx, ledger, redis.Z{Score: float64(now.Add(-time.Minute - watch.Keep).UnixMilli()), Member: "seen"})
	b.fill(2500, now.Add(-time.Hour-watch.Keep))
	for i, want := range []watch.Verdict{watch.Accepted, watch.Duplicate} { // first expired, then just accepted
		if got := b.accept(in); got != want {
			t.Errorf("%d: %s, want %s", i, got, want)
		}
	}
	b.client.ZAdd(ctx, ledger, redis.Z{Score: float64(now.Add(time.Minute - watch.Keep).UnixMilli()), Member: "seen"})
	if got := b.accept(in); got != watch.Duplicate {
		t.Errorf("a minute before it expires: %s", got)
	}
	for i := range 2 { // each delivery removes up to a thousand expired ones
		b.accept(watch.Delivery{Source: "gh", ID: fmt.Sprint("d", i)})
	}
	if n := b.client.ZCard(ctx, ledger).Val(); n != 3 {
		t.Errorf("%d in the ledger, want the three new ones", n)
	}
	if left := b.client.PTTL(ctx, ledger).Val(); left <= watch.Keep-time.Minute || left > watch.Keep {
		t.Errorf("the ledger's TTL is %v, want %v", left, watch.Keep)
	}
	long := strings.Repeat("x", 100_000)
	for i, want := range []watch.Verdict{watch.Accepted, watch.Duplicate} {
		if got := b.accept(watch.Delivery{Source: "lab", ID: long}); got != want {
			t.Errorf("long ID, attempt %d: %s", i, got)
		}
	}
	if kept := b.client.ZRange(ctx, "lockstep:{0}:deliveries:lab", 0, -1).Val(); len(kept) != 1 || len(kept[0]) > 200 {
		t.Errorf("a long ID is stored as %d bytes", len(kept[0]))
	}
}

func TestLedgerDropsOldestDeliveriesOverTheLimit(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := benchOn(t, redistest.StartReal(t)) // the embedded Redis sorts the whole set each time
	b.fill(200_000, b.client.Time(ctx).Val().Add(-time.Minute))
	for i := range 3 {
		b.accept(watch.Delivery{Source: "gh", ID: fmt.Sprint("e", i)})
	}
	if n := b.client.ZCard(ctx, ledger).Val(); n != 200_000 {
		t.Errorf("%d in the ledger, want 200,000", n)
	}
	for _, id := range []string{"e0", "e2"} {
		if b.client.ZScore(ctx, ledger, id).Err() != nil {
			t.Errorf("%s was dropped before older ones", id)
		}
	}
}

func TestFailedAcceptChangesNothing(t *testing.T) {
	ctx := context.Background()
	for _, spoilt := range []string{"changes", "deliveries:gh", "watch:at:example.com/acme/widgets"} {
		b := newBench(t)
		docs := of(t, "docs", "acme/widgets", "")
		b.client.Set(ctx, "lockstep:{0}:"+spoilt, "mine", 0)
		before := b.dump()
		if verdict, err := b.Accept(ctx, watch.Delivery{Source: "gh", ID: "d", Versions: map[string]string{"example.com/acme/widgets": ""}, Changes: []events.Change{pushed(t, docs, "1")}}); err == nil {
			t.Errorf("%s is a string: %s", spoilt, verdict)
		}
		if after := b.dump(); !maps.Equal(before, after) {
			t.Errorf("%s: %v", spoilt, after)
		}
	}
}

func TestAcceptRecordsTheNewestAnnouncement(t *testing.T) {
	b := newBench(t)
	docs := of(t, "docs", "acme/widgets", "")
	b.put(docs)
	last := ""
	for n, after := range []string{strings.Repeat("a", 40), strings.Repeat("b", 40), "", strings.Repeat("0", 40)} {
		change, err := docs.Change(fmt.Sprint("c", n), "/test", events.Ref{}, after)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.accept(watch.Delivery{Source: "hub", ID: change.ID, Versions: b.versions("acme/widgets"), Changes: []events.Change{change}}); got != watch.Accepted {
			t.Fatal(got)
		}
		if change.Announced() != "" {
			info, err := b.client.XInfoStream(t.Context(), events.DefaultNamespace.Changes()).Result()
			if err != nil {
				t.Fatal(err)
			}
			last = info.LastGeneratedID
		}
	}
	known, err := state.NewStore(b.client, events.DefaultNamespace).Load(t.Context(), docs.Repo)
	if err != nil || last == "" || known.Newest(events.Ref{}, "docs") != last {
		t.Errorf("newest is %q, error %v; want the last that announced a commit, %s", known.Newest(events.Ref{}, "docs"), err, last)
	}
}
