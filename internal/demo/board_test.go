package demo

import (
	"errors"
	"testing"
	"time"

	"lockstep/events"
)

func TestBoardCountsEachResultOnce(t *testing.T) {
	b := newBoard([]string{"demo/hot", "demo/cold"})
	b.stall(time.Now(), b.repos[:1])
	ids := append(b.pushed("demo/hot", 1, "a", 2), b.pushed("demo/cold", 1, "b", 1)...)
	synced := func(id, after string) events.Result {
		return events.Result{Type: events.ResultSynced, Deliveries: []string{id}, After: after}
	}
	b.settled(synced(ids[0], "a"), time.Now())
	b.settled(synced(ids[0], "a"), time.Now())
	b.settled(synced("of a watch", "a"), time.Now())
	b.settled(events.Result{Type: events.ResultFailed, Deliveries: ids[2:]}, time.Now())
	b.readOne(nil)
	b.readOne(errors.New("torn"))
	if b.results != 2 || b.doubled != 1 || b.failed != 1 || b.unsettled() != 1 || b.reads != 2 || b.torn != 1 {
		t.Errorf("%d results, %d doubled, %d failed, %d unsettled, %d reads, %d torn; want 2, 1, 1, 1, 2, 1",
			b.results, b.doubled, b.failed, b.unsettled(), b.reads, b.torn)
	}
	if hot, cold := b.repos[0], b.repos[1]; hot.published != 1 || cold.published != 0 || len(b.delayed) != 1 || len(hot.latencies) != 0 || len(cold.latencies) != 1 {
		t.Errorf("published %d and %d, %d delayed; want 1, 0, and the hot one's alone", hot.published, cold.published, len(b.delayed))
	}
}
