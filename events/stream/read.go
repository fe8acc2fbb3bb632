package stream

import (
	"cmp"
	"context"
	"maps"
	"strings"
	"time"
)

// An idle consumer polls the due index every pollInterval, because only a poll detects due times set or left
// behind by other consumers. While the index is empty, a due time can only come from a new entry,
// which the watcher reports, so idlePollInterval is enough to notice a deleted group.
const (
	pollInterval     = 100 * time.Millisecond
	idlePollInterval = time.Second
)

const firstBatch = 8 // doubles while batches are full, so that consumers that start together share a backlog

// read takes entries and hands them out until stop is done. It never exceeds the window.
func (s *subscription) read(stop context.Context, watcher *watcher) {
	wait, batch := firstRetry, min(firstBatch, s.cfg.Batch)
	for turn := 0; stop.Err() == nil; turn++ {
		count := min(s.cfg.Window-s.flight.len(), s.cfg.Room(), batch)
		if count <= 0 {
			s.full(stop)
			continue
		}
		if s.overdue() {
			s.beat(stop) // otherwise our own entries would look lapsed
		}
		s.unpark(stop)
		share := s.dueShare(count, turn)
		got, err := s.take(count, share)
		if err != nil {
			s.recover(stop, err)
			sleep(stop, wait)
			// Many huge entries may exceed the timeout: restart with one.
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
		if len(got.entries) < count && (got.next != 0 || s.holdingOff()) {
			watcher.after(got.last)
			s.idle(stop, got.next)
		}
	}
}

// take ignores the end of the subscription: entries already taken are better given back than left to lapse.
func (s *subscription) take(count, share int) (got takeResult, err error) {
	err = withTimeout(s.base, func(ctx context.Context) error {
		got, err = s.group.take(ctx, count, share, s.cfg.Visibility.Milliseconds())
		return err
	})
	return got, err
}

// dueShare returns how many of count entries may come from the due index. Due entries go first but leave a
// quarter to new ones, so that neither starves the other.
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

// holdingOff reports whether Redis was unavailable long enough for entries of live consumers to lapse. After its first
// reply, due entries are left alone for a while so that their consumers can send heartbeats.
func (s *subscription) holdingOff() bool {
	return s.outage.recent(s.cfg.Visibility / 2)
}

func (s *subscription) full(stop context.Context) {
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-s.flight.freed:
	case <-timer.C:
	case <-stop.Done():
	}
}

// idle waits for new entries, the next due time or the poll interval.
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

// recover handles an error of take. It re-creates a missing group.
func (s *subscription) recover(ctx context.Context, err error) {
	if !noGroup(err) {
		s.outage.failed(ctx, err)
		return
	}
	if err := withTimeout(ctx, s.group.create); err != nil {
		s.outage.failed(ctx, err)
		return
	}
	s.log.WarnContext(ctx, "consumer group recreated, the stream is read again from its first entry: "+
		"Redis lost its data, or the group was deleted", "stream", s.group.stream)
}

// admit turns entries into deliveries. From then on they are in flight and get heartbeats.
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
			s.log.WarnContext(ctx, "entry lapsed: its previous consumer died, hung or was cut off",
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
			s.flight.markOverLimit(d.key) // the consumer that parked it may be gone, and there may be more
		}
		if former := s.flight.enter(d); former != nil {
			former.lose()
		}
		admitted = append(admitted, d)
	}
	s.park(ctx, overLimit)
	for _, one := range undecodable { // last, because it may be slow and the others have heartbeats now
		one()
	}
	return admitted
}

// deliver hands a message out, or gives it back if the subscription is stopping.
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

// stillMine reports whether an entry just taken is already in flight here and must not be delivered twice: it
// lapsed because our heartbeats were late, or the group was re-created.
func (s *subscription) stillMine(former *Delivery, e entry) bool {
	switch e.origin {
	case ":" + s.group.consumer:
		return true
	case "new":
		return !former.busy.Load() && !former.lost.Load()
	}
	return false
}

func (s *subscription) deadLetterUndecodable(ctx context.Context, d *Delivery, cause error) {
	err := d.DeadLetter(ctx, Reason{Reason: "undecodable", Error: cause.Error()}, Settlement{})
	if err != nil {
		s.log.ErrorContext(ctx, "cannot dead-letter an undecodable entry; it will be redelivered",
			"stream", s.group.stream, "entry", d.entry, "dead", s.cfg.Dead, "error", err)
		return
	}
	s.log.WarnContext(ctx, "undecodable entry dead-lettered",
		"stream", s.group.stream, "entry", d.entry, "dead", s.cfg.Dead, "error", cause.Error()) // without the stack
	s.cfg.Observer.Delivered(s.group.stream, d.attempt, s.flight.len()) // not handed out, but keeps the counts balanced
	s.cfg.Observer.Finished(s.group.stream, Dead, time.Since(d.since))
}
