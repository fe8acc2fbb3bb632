package handlers

import (
	"strconv"
	"strings"
	"time"

	"lockstep/events"
)

// Timeline says when a settled change reached each stage. A time is zero if it does not apply or is unknown.
// Received is by the publisher's clock, Queued by Redis', all others by this process'. A time earlier than
// the previous one is set to it, so small differences between clocks result in a stage of length 0, never a
// negative one.
type Timeline struct {
	Operation string // sync, remove, move or poll
	Outcome   string // synced, unchanged, removed, moved, polled, coalesced, failed or left
	Again     bool   // the change had been delivered before: the time until Delivered includes earlier attempts

	Received  time.Time // a webhook's receipt, or the publisher's own time; zero if that is implausible
	Queued    time.Time // the entry was added to the stream
	Delivered time.Time // this process read the entry, for the delivery that was settled
	Leased    time.Time // the lease was granted
	Began     time.Time // the lease was granted, as if the waits for a work slot in [events.PhaseWait] had come first
	Fetched   time.Time // the remote had sent everything
	Published time.Time // the handler returned: readers see the new tree
	Settled   time.Time // the result is on the stream
}

// Stage is a part of a [Timeline].
type Stage string

// The stages. A coalesced change has only the first and the last, a failed one the first three.
const (
	StageReceive Stage = "receive" // from Received to Queued
	StageQueue   Stage = "queue"   // to Delivered, on the first delivery
	// to Delivered, on a later delivery: earlier ones and the delays between them included.
	StageRetry     Stage = "retry"
	StageLease     Stage = "lease"     // to Leased
	StageSlot      Stage = "slot"      // to Began: waits for a work slot, but those within a stage
	StageFetch     Stage = "fetch"     // to Fetched
	StagePublish   Stage = "publish"   // to Published: compare, build, flush and flip
	StageWork      Stage = "work"      // replaces fetch and publish for everything but a sync
	StageSettle    Stage = "settle"    // to Settled
	StageCoalesced Stage = "coalesced" // from Queued to Settled, for a change settled along with another
)

// Stages yields each stage that the change went through, in order, and how long it took.
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
		settled = "" // failed: the length of the work is not known here
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

// Total is the time from Received, or else from Queued, to Settled, over all attempts. It is false if both are unknown.
func (t Timeline) Total() (time.Duration, bool) {
	first := t.Received
	if first.IsZero() {
		first = t.Queued
	}
	return t.Settled.Sub(first), !first.IsZero()
}

// A publisher's time outside this range is ignored: its clock is wrong.
const (
	maxReceivedAgo   = 7 * 24 * time.Hour // before the change was queued
	maxReceivedAhead = time.Minute        // after the change was queued
)

// queued returns the part of a change's timeline that is known from its entry.
func queued(change events.Change, entry string) Timeline {
	t := Timeline{Operation: change.Type.Operation(), Received: change.Time, Queued: EntryTime(entry)}
	reference := t.Queued
	if reference.IsZero() {
		reference = time.Now()
	}
	if ago := reference.Sub(t.Received); ago > maxReceivedAgo || ago < -maxReceivedAhead {
		t.Received = time.Time{}
	}
	return t
}

// ended completes the timeline and puts its times in order.
func (t Timeline) ended(outcome string, settled time.Time) Timeline {
	t.Outcome, t.Settled = outcome, settled
	last := time.Time{}
	for _, at := range []*time.Time{&t.Received, &t.Queued, &t.Delivered, &t.Leased, &t.Began, &t.Fetched, &t.Published,
		&t.Settled} {
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

// EntryTime returns the time in a stream entry's ID, by Redis' clock, or zero if it is implausible.
func EntryTime(entry string) time.Time {
	head, _, found := strings.Cut(entry, "-")
	ms, err := strconv.ParseInt(head, 10, 64)
	at := time.UnixMilli(ms)
	if err != nil || !found || at.Year() < 2000 || time.Until(at) > maxReceivedAhead {
		return time.Time{}
	}
	return at
}
