package stream

import (
	"cmp"
	"context"
	"maps"
	"strings"
	"time"
)

// pollInterval is how often an idle consumer looks at the due index. It knows its own due moments to
// the millisecond; those that other consumers set, or left behind, it learns of by looking. As long as the
// index is empty none can come about but by a new entry, of which the watcher hears: then a look now and
// then is enough, for the case that the group is gone.
const (
	pollInterval     = 100 * time.Millisecond
	idlePollInterval = time.Second
)

// firstBatch is how many entries are read at first. It doubles as long as there are that many, so that
// several consumers that come upon a backlog at once share it out.
const firstBatch = 8

// read takes entries and hands them out until stop is done. It never holds more than the window.
func (s *subscription) read(stop context.Context, watcher *watcher) {
	wait, batch := firstRetry, min(firstBatch, s.cfg.Batch)
	for turn := 0; stop.Err() == nil; turn++ {
		count := min(s.cfg.Window-s.flight.len(), s.cfg.Room(), batch)
		if count <= 0 {
			s.full(stop)
			continue
		}
		if s.overdue() {
			s.beat(stop) // before our own entries look lapsed to ourselves
		}
		s.unpark(stop)
		share := s.dueShare(count, turn)
		got, err := s.take(count, share)
		if err != nil {
			s.recover(stop, err)
			sleep(stop, wait)
			// Huge entries, many at once, may be more than comes through in time: begin again with one.
			wait, batch = min(2*wait, lastRetry), 1
			continue
		}
		wait, batch = firstRetry, min(2*batch, s.cfg.Batch)
		if len(got.entries) < count {
			batch = min(firstBatch, s.cfg.Batch)
		}
		s.outage.answered(stop, s.cfg.Visibility/2)
		for _, d := range s.admit(stop, got.entries) {
			s.deliver(stop, d)
		}
		switch {
		case len(got.entries) == count:
		case got.next == 0 && !s.holdingOff():
		default:
			watcher.after(got.last)
			s.idle(stop, got.next)
		}
	}
}

// take does so even when the subscription is being stopped: a script that ran has taken entries, and
// these are better given back than left to lapse.
func (s *subscription) take(count, share int) (got takeResult, err error) {
	err = withTimeout(s.base, func(ctx context.Context) error {
		got, err = s.group.take(ctx, count, share, s.cfg.Visibility.Milliseconds())
		return err
	})
	return got, err
}

// dueShare says how many of count entries may come from the due index. What is due goes first, but
// leaves a quarter to what is new, so that neither can starve the other.
func (s *subscription) dueShare(count, turn int) int {
	switch {
	case s.holdingOff():
		return 0
	case count >= 4:
		return count - count/4
	case turn%4 == 3:
		return 0
	}
	return count
}

// holdingOff is true when Redis was away for so long that the entries of living consumers lapsed, from
// the first word that it speaks again: they come first to say that they still have them.
func (s *subscription) holdingOff() bool {
	return s.outage.recent(s.cfg.Visibility / 2)
}

// full waits until there may be room.
func (s *subscription) full(stop context.Context) {
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-s.flight.freed:
	case <-timer.C:
	case <-stop.Done():
	}
}

// idle waits for news, the next due moment, or the time to look around.
func (s *subscription) idle(stop context.Context, nextMS int64) {
	wait := pollInterval
	switch {
	case nextMS < 0 && !s.holdingOff():
		wait = idlePollInterval
	case nextMS > 0 && nextMS < pollInterval.Milliseconds():
		wait = time.Duration(nextMS) * time.Millisecond
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-s.wake:
	case <-timer.C:
	case <-stop.Done():
	}
}

// recover does what can be done about an error: a group that is gone is made again.
func (s *subscription) recover(ctx context.Context, err error) {
	if !noGroup(err) {
		s.outage.failed(ctx, err)
		return
	}
	if err := withTimeout(ctx, s.group.create); err != nil {
		s.outage.failed(ctx, err)
		return
	}
	s.log.WarnContext(ctx, "the consumer group was gone and is made anew: Redis lost its data, or somebody deleted it; "+
		"the stream is read again from its first entry", "stream", s.group.stream)
}

// admit makes deliveries of entries. From here on they are in flight and have heartbeats, though
// nobody may have asked for their messages yet.
func (s *subscription) admit(ctx context.Context, entries []entry) []*Delivery {
	admitted := make([]*Delivery, 0, len(entries))
	var overLimit []*Delivery
	var undecodable []func()
	for _, e := range entries {
		if former := s.flight.find(e.id); former != nil && s.stillMine(former, e) {
			continue
		}
		if had, lapsed := strings.CutPrefix(e.origin, ":"); lapsed {
			s.cfg.Observer.Lapsed(s.group.stream, had)
			s.log.WarnContext(ctx, "entry lapsed: the consumer that had it died, hung or was cut off",
				"stream", s.group.stream, "entry", e.id, "had_by", had, "attempt", e.failed+1)
		}
		d := &Delivery{sub: s, entry: e.id, attempt: e.failed + 1, times: e.times, since: time.Now()}
		msg, err := decode(s.cfg.Unmarshaller, e)
		if err != nil {
			undecodable = append(undecodable, func() { s.deadLetterUndecodable(ctx, d, err) })
			continue
		}
		d.ctx, d.cancel = context.WithCancelCause(context.WithValue(s.base, deliveryKey{}, d))
		d.msg = msg
		if len(msg.Metadata) > 0 {
			d.meta = maps.Clone(msg.Metadata)
		}
		msg.SetContext(d.ctx)
		if d.key = s.cfg.Key(msg); !s.flight.hasCapacity(d.key) {
			d.cancel(nil)
			overLimit = append(overLimit, d)
			continue
		}
		if e.origin == "parked" && d.key != "" {
			s.flight.markOverLimit(d.key) // whoever sent it away may be gone, and there may be more
		}
		if former := s.flight.enter(d); former != nil {
			former.lose()
		}
		admitted = append(admitted, d)
	}
	s.park(ctx, overLimit)
	for _, one := range undecodable { // last, for it may take a while, and the others have heartbeats now
		one()
	}
	return admitted
}

// hand hands a message out, or gives it back if the subscription is being stopped.
func (s *subscription) deliver(stop context.Context, d *Delivery) {
	if stop.Err() == nil {
		select {
		case s.out <- d.msg:
			s.cfg.Observer.Delivered(s.group.stream, d.attempt, s.flight.len())
			s.attends.Go(func() { s.awaitHandler(d) })
			return
		case <-d.ctx.Done(): // lost, or settled by a sibling
			s.release(d, cmp.Or(d.Outcome(), Lost))
			return
		case <-stop.Done():
		}
	}
	if d.claim(Deferred) {
		s.endings <- ending{d: d, how: Deferred}
	} else {
		s.release(d, d.Outcome())
	}
}

// stillMine is true when an entry was taken that is already in flight here, and no second delivery
// must come of it: heartbeats were late and it lapsed under ourselves, or the group was made anew.
func (s *subscription) stillMine(former *Delivery, e entry) bool {
	switch e.origin {
	case ":" + s.group.consumer:
		return true
	case "new":
		return !former.busy.Load() && !former.lost.Load()
	}
	return false
}

// bury makes a dead letter of an entry that cannot be read.
func (s *subscription) deadLetterUndecodable(ctx context.Context, d *Delivery, cause error) {
	err := d.DeadLetter(ctx, Reason{Reason: "undecodable", Error: cause.Error()}, Settlement{})
	if err != nil {
		s.log.ErrorContext(ctx, "cannot dead-letter an entry that cannot be read; it comes again",
			"stream", s.group.stream, "entry", d.entry, "dead", s.cfg.Dead, "error", err)
		return
	}
	s.log.WarnContext(ctx, "entry cannot be read and is now a dead letter",
		"stream", s.group.stream, "entry", d.entry, "dead", s.cfg.Dead, "error", cause.Error()) // not its stack
	s.cfg.Observer.Delivered(s.group.stream, d.attempt, s.flight.len()) // to nobody, but each end has a beginning
	s.cfg.Observer.Finished(s.group.stream, Dead, time.Since(d.since))
}
