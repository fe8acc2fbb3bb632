package stream

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
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

const (
	firstBatch = 8       // entries; doubles while batches are full, so that consumers that start together share a backlog
	mostBatch  = 128     // entries
	readBytes  = 8 << 20 // bytes of one read, which bounds how long it blocks Redis; the last entries may exceed it
)

// read unparks and takes entries, and hands them out, until stop is done. It never exceeds the window, and
// its bytes by one read at most.
func (s *subscription) read(stop context.Context, watcher *watcher) {
	wait, batch := firstRetry, firstBatch
	for stop.Err() == nil {
		inFlight, held := s.flight.load()
		count, bytes := min(s.cfg.Window-inFlight, s.cfg.Room(), batch), min(s.cfg.Bytes-held, readBytes)
		more := s.unpark(stop) // also without room: what this process cannot take, another does
		if count <= 0 || bytes <= 0 {
			s.touch(stop)
			s.full(stop)
			continue
		}
		s.flight.markParked(more...)
		share := s.dueShare(count)
		got, deliveries, err := s.take(stop, count, share, bytes)
		if err != nil {
			s.recover(stop, err)
			sleep(stop, wait)
			// Entries may be too large to arrive in time: restart with one.
			wait, batch = min(2*wait, lastRetry), 1
			continue
		}
		wait = firstRetry
		if len(got.entries) < count && got.next != 0 { // with 0, only the share of due entries is used up
			batch = min(batch, firstBatch)
		} else {
			batch = min(2*batch, mostBatch)
		}
		s.park(stop, deliveries.waiting)
		for _, p := range deliveries.poison {
			s.deadLetterUndecodable(stop, p.Delivery, p.cause)
		}
		for _, d := range deliveries.entered {
			s.deliver(stop, d)
		}
		if s.drained(got, count, bytes) && (got.next != 0 || s.holdingOff()) {
			watcher.after(got.last)
			s.idle(stop, got.next)
		}
	}
}

// drained reports whether a take of at most count entries and bytes left nothing that could be taken now.
func (s *subscription) drained(got takeResult, count int, bytes int64) bool {
	return len(got.entries) == 0 || len(got.entries) < count && got.bytes() < bytes && !s.flight.canUnpark()
}

// take ignores the end of stop: entries already taken are better given back than left to lapse.
func (s *subscription) take(
	stop context.Context, count, share int, bytes int64,
) (got takeResult, all taken, err error) {
	beat := s.heartbeatIn() == 0
	if got, err = s.group.take(stop, count, share, bytes, s.cfg.MaxIdleTime, beat); err != nil {
		return got, all, err
	}
	if beat || len(got.entries) > 0 {
		s.heard = time.Now()
	}
	s.outage.answered(stop, s.cfg.MaxIdleTime/2)
	s.vanished(stop, got)
	return got, s.admit(stop, got.entries), nil
}

// dueShare returns how many of count entries may come from the due index. Due entries go first but leave about a
// quarter to new ones, so that neither starves the other.
func (s *subscription) dueShare(count int) int {
	if s.holdingOff() {
		return 0
	}
	return count - (count+rand.N(4))/4
}

// holdingOff reports whether Redis was unavailable long enough for entries of live consumers to lapse. After its first
// reply, due entries are left alone for a while so that their consumers can send heartbeats.
func (s *subscription) holdingOff() bool {
	return s.outage.recent(s.cfg.MaxIdleTime / 2)
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
	timer := time.NewTimer(min(wait, max(s.heartbeatIn(), time.Millisecond)))
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
	s.log.WarnContext(ctx, "consumer group recreated, entries are delivered again: Redis lost its data, "+
		"or the group was deleted",
		"stream", s.group.stream, "after", s.group.start)
	s.cfg.Vanished(0, nil)
}

// vanished reports the entries that a take has missed.
func (s *subscription) vanished(ctx context.Context, got takeResult) {
	n := got.unread + int64(len(got.keys))
	if n == 0 {
		return
	}
	s.log.ErrorContext(ctx, "entries vanished from the stream before they were settled: it was full, as its trimmer logs, "+
		"or something else trims it: then remove MAXLEN from XADD, and do not use XTRIM or XDEL",
		"stream", s.group.stream, "entries", n, "unread", got.unread)
	s.cfg.Vanished(n, slices.DeleteFunc(got.keys, func(key string) bool { return key == "" }))
}

// taken are the deliveries of the entries that one call took.
type taken struct {
	entered []*Delivery // to be handed out; they are in flight and get heartbeats
	waiting []*Delivery // to be parked: their keys have deliveries in flight
	poison  []poisoned  // to be dead-lettered
}

type poisoned struct {
	*Delivery
	cause error
}

// admit turns entries into deliveries.
func (s *subscription) admit(ctx context.Context, entries []entry) (all taken) {
	for _, e := range entries {
		if former := s.flight.find(e.id); former != nil {
			if s.stillMine(former, e) {
				continue
			}
			former.lose()
		}
		if had, lapsed := strings.CutPrefix(e.origin, ":"); lapsed {
			s.cfg.Lapsed(s.group.stream)
			s.log.WarnContext(ctx, "entry lapsed: its previous consumer died, hung or was cut off",
				"stream", s.group.stream, "entry", e.id, "had_by", had, "attempt", e.failed+1, "deaths", e.deaths)
		}
		d := &Delivery{sub: s, entry: e.id, attempt: e.failed + 1, times: e.times, bytes: e.bytes(),
			since: time.Now()}
		d.deaths.Store(int64(e.deaths))
		if err := d.open(e); err != nil {
			all.poison = append(all.poison, poisoned{d, err})
			continue
		}
		if e.more {
			s.flight.markParked(d.key) // the consumer that parked it may be gone
		}
		if !s.flight.enter(d, e.origin == "new") {
			d.cancel(nil)
			all.waiting = append(all.waiting, d)
			continue
		}
		all.entered = append(all.entered, d)
	}
	return all
}

// open decodes the entry of d.
func (d *Delivery) open(e entry) (err error) {
	d.ctx, d.cancel = context.WithCancelCause(context.WithValue(d.sub.base, deliveryKey{}, d))
	if d.msg, err = decode(d.sub.cfg.Unmarshaller, e.id, e.values()); err != nil {
		return err
	}
	d.msg.SetContext(d.ctx)
	d.key, d.beside, err = d.sub.cfg.keyOf(d.msg)
	return err
}

// deliver hands a message out, or gives it back if the subscription is stopping.
func (s *subscription) deliver(stop context.Context, d *Delivery) {
	if stop.Err() == nil {
		select {
		case s.out <- d.msg:
			s.cfg.Delivered(s.group.stream, d.attempt)
			s.attends.Go(func() { s.awaitHandler(d) })
			return
		case <-d.ctx.Done(): // lost, or the subscription ends
		case <-stop.Done():
		}
	}
	if !d.lost.Load() && d.claim(Deferred) {
		s.endings <- ending{d: d, how: Deferred}
	} else {
		s.release(d, cmp.Or(d.Outcome(), Lost))
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
	defer d.cancel(nil)
	err := d.DeadLetter(ctx, "undecodable", "", cause.Error(), Settlement{})
	if err != nil {
		s.log.ErrorContext(ctx, "cannot dead-letter an undecodable entry; it will be redelivered",
			"stream", s.group.stream, "entry", d.entry, "dead", s.cfg.dead(), "error", err)
		return
	}
	s.log.WarnContext(ctx, "undecodable entry dead-lettered",
		"stream", s.group.stream, "entry", d.entry, "dead", s.cfg.dead(), "error", cause.Error()) // without the stack
	s.cfg.Delivered(s.group.stream, d.attempt) // not handed out, but keeps the counts balanced
	s.cfg.Finished(s.group.stream, Dead, time.Since(d.since))
}
