package router

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/locking"
)

// Timeline says when a settled change came to each stage of its way. A moment is zero where it does not apply
// or is not known. Received is by the publisher's clock, Queued by Redis', all others by this process'; a moment
// before the one it follows is set to that, so clocks that differ a little give 0 and nothing below it.
type Timeline struct {
	Operation string // sync, remove, move or poll
	Outcome   string // as [Changes] tells Observe
	Again     bool   // it had been delivered before: what went on until Delivered is not waiting alone

	Received  time.Time // it was asked for: a webhook's receipt, or what its publisher says; zero if that makes no sense
	Queued    time.Time // its entry was added to the stream
	Delivered time.Time // this process took the entry in, for the delivery that ended in its settlement
	Leased    time.Time // that had the lease
	Began     time.Time // and a slot
	Fetched   time.Time // the remote had said, and sent, all that it was asked for
	Published time.Time // the handler was done: readers see what came of it
	Settled   time.Time // and so do all others
}

// Stage is what a change waited for, or what was done about it.
type Stage string

// The stages. A coalesced change has the first and the last only, one that failed is not followed beyond the third.
const (
	StageReceive   Stage = "receive"   // from Received to Queued
	StageQueue     Stage = "queue"     // on to Delivered, the first time
	StageRetry     Stage = "retry"     // instead of it when there were deliveries before: all of these too, and the delays between
	StageLease     Stage = "lease"     // on to Leased
	StageSlot      Stage = "slot"      // on to Began
	StageFetch     Stage = "fetch"     // on to Fetched
	StagePublish   Stage = "publish"   // on to Published: to compare, build, flush and flip
	StageWork      Stage = "work"      // instead of these two, for all that is not a sync
	StageSettle    Stage = "settle"    // on to Settled
	StageCoalesced Stage = "coalesced" // from Queued to Settled, of a change that another's work has answered
)

// Stages calls yield with each stage that the change went through and how long that took, in order.
func (t Timeline) Stages(yield func(Stage, time.Duration) bool) {
	waited, published := StageQueue, StagePublish
	if t.Again {
		waited = StageRetry
	}
	if t.Operation != "sync" {
		published = StageWork
	}
	settled := StageSettle
	if t.Outcome == outcomeCoalesced {
		settled = StageCoalesced
	} else if t.Began.IsZero() {
		settled = "" // given up, and how long was worked on it before is not known here
	}
	last := t.Received
	for _, s := range [...]struct {
		stage Stage
		until time.Time
	}{
		{StageReceive, t.Queued}, {waited, t.Delivered}, {StageLease, t.Leased}, {StageSlot, t.Began},
		{StageFetch, t.Fetched}, {published, t.Published}, {settled, t.Settled},
	} {
		if s.until.IsZero() {
			continue
		}
		if !last.IsZero() && s.stage != "" && !yield(s.stage, s.until.Sub(last)) {
			return
		}
		last = s.until
	}
}

// Total is the time from Received, or else from Queued, to Settled, over all attempts. It is false where
// neither is known.
func (t Timeline) Total() (time.Duration, bool) {
	first := t.Received
	if first.IsZero() {
		first = t.Queued
	}
	return t.Settled.Sub(first), !first.IsZero()
}

// What a publisher may say of when a change was asked for. Beyond that its clock is wrong, or it makes
// things up: its word is of no use.
const (
	maxReceivedAgo   = 7 * 24 * time.Hour // before it was queued
	maxReceivedAhead = time.Minute        // of when it was queued
)

// timelineOf is a delivered change's timeline as far as it is known before the work.
func timelineOf(msg *message.Message, change events.Change) Timeline {
	delivery, ok := stream.DeliveryOf(msg)
	if !ok {
		return queued(change, "")
	}
	t := queued(change, delivery.Entry())
	t.Delivered, t.Again = delivery.Began(), delivery.Delivered() > 1
	return t
}

// queued is a change's timeline as far as it is known from its entry.
func queued(change events.Change, entry string) Timeline {
	t := Timeline{Operation: change.Type.Operation(), Received: change.Time, Queued: queuedAt(entry)}
	reference := t.Queued
	if reference.IsZero() {
		reference = time.Now()
	}
	if ago := reference.Sub(t.Received); ago > maxReceivedAgo || ago < -maxReceivedAhead {
		t.Received = time.Time{}
	}
	return t
}

// worked adds how the work went.
func (t Timeline) worked(leases locking.Leases, w *stopwatch) Timeline {
	for _, lease := range leases {
		t.Leased = latest(t.Leased, lease.Began())
	}
	t.Began, t.Fetched, t.Published = w.began, w.fetchedBy(w.published), w.published
	return t
}

// ended completes the timeline: no moment comes before another's.
func (t Timeline) ended(outcome string, settled time.Time) Timeline {
	t.Outcome, t.Settled = outcome, settled
	last := time.Time{}
	for _, at := range []*time.Time{&t.Received, &t.Queued, &t.Delivered, &t.Leased, &t.Began, &t.Fetched, &t.Published, &t.Settled} {
		if !at.IsZero() {
			*at = latest(*at, last)
			last = *at
		}
	}
	return t
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// queuedAt is the moment in a stream entry's id, which is by Redis' clock; zero for an id that somebody made up.
func queuedAt(entry string) time.Time {
	at := events.EntryTime(entry)
	if at.Year() < 2000 || time.Until(at) > maxReceivedAhead {
		return time.Time{}
	}
	return at
}
