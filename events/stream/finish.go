package stream

import (
	"context"
	"time"
)

type ending struct {
	d     *Delivery
	how   string // Acked, Nacked or Deferred
	delay time.Duration
}

// awaitHandler waits until the handler acks or nacks its message, or until the grace period ends.
func (s *subscription) awaitHandler(d *Delivery) {
	end := ending{d: d, how: Acked}
	select {
	case <-d.msg.Acked():
	case <-d.msg.Nacked():
		end.how, end.delay = Nacked, s.cfg.nackDelay(d.msg, d.attempt)
		if d.msg.Metadata.Get(MetadataUncounted) == "true" {
			end.how = Deferred
		}
	case <-s.graceOver.Done():
		select {
		case <-d.msg.Acked():
		default:
			end.how = Deferred
		}
	}
	d.cancel(nil)
	// Ignore the ack of a lost delivery: a cancelled handler may ack work it did not do.
	if d.lost.Load() {
		end.how = Lost
	}
	if d.claim(end.how) && end.how != Lost {
		s.endings <- end
	} else {
		s.release(d, d.Outcome())
	}
}

// finish writes endings to Redis in batches: each has the endings that arrived during the previous write. It returns
// when the channel is closed and everything is written. Once ctx is done it does not retry.
func (s *subscription) finish(ctx context.Context) {
	for end := range s.endings {
		batch := []ending{end}
		for len(s.endings) > 0 && len(batch) < entriesAtOnce {
			batch = append(batch, <-s.endings) // the only receiver, so this does not block
		}
		s.writeBatch(ctx, batch)
	}
}

func (s *subscription) writeBatch(ctx context.Context, batch []ending) {
	var acks []string
	var backs []giveBack
	for _, end := range batch {
		if end.how == Acked {
			acks = append(acks, end.d.entry)
		} else {
			backs = append(backs, end.d.back(end.how, end.delay))
		}
	}
	lost := make(map[string]bool)
	s.write(ctx, "acknowledge", len(acks), lost, func(ctx context.Context) ([]string, error) {
		return s.group.ack(ctx, acks)
	})
	s.write(ctx, "give back", len(backs), lost, func(ctx context.Context) ([]string, error) {
		return s.group.nack(ctx, s.group.consumer, backs)
	})
	for _, end := range batch {
		if lost[end.d.entry] {
			end.how = Lost
		}
		s.release(end.d, end.how)
	}
	if len(backs) > 0 {
		s.wakeReader()
	}
}

// write runs a script that finishes entries, and adds the IDs that it refused to lost.
func (s *subscription) write(
	ctx context.Context, what string, n int, lost map[string]bool, script func(context.Context) ([]string, error),
) {
	if n == 0 {
		return
	}
	var refused []string
	err := s.outage.retry(ctx, func(ctx context.Context) (err error) {
		refused, err = script(ctx)
		return err
	})
	if err != nil {
		s.log.ErrorContext(ctx, "cannot write finished entries to Redis; they will be redelivered after the "+
			"visibility timeout",
			"stream", s.group.stream, "what", what, "entries", n, "visibility", s.cfg.MaxIdleTime, "error", err)
	}
	for _, id := range refused {
		lost[id] = true
		s.log.WarnContext(ctx, "finished too late: another consumer owns the entry, or the group was created anew; it is delivered twice",
			"stream", s.group.stream, "entry", id, "what", what)
	}
}

func (s *subscription) release(d *Delivery, how string) {
	d.cancel(nil)
	if s.flight.leave(d) {
		s.wakeReader()
	}
	s.cfg.Finished(s.group.stream, how, time.Since(d.since))
}
