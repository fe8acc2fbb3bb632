package stream

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
)

// endingsAtOnce bounds how many endings go into one script call.
const endingsAtOnce = 256

// ending is what Redis has yet to be told of a delivery.
type ending struct {
	d     *Delivery
	how   Outcome // Acked, Nacked or Deferred
	delay time.Duration
}

// attend waits until a message is acked or nacked, which is when its handler has ended, or until
// handlers are not waited for any more.
func (s *subscription) awaitHandler(d *Delivery) {
	var end ending
	select {
	case <-d.msg.Acked():
		end = ending{d: d, how: Acked}
	case <-d.msg.Nacked():
		end = s.nacked(d)
	case <-s.graceOver.Done():
		end = ending{d: d, how: Deferred}
		select {
		case <-d.msg.Acked():
			end.how = Acked
		default:
		}
	}
	d.cancel(nil)
	// One that was lost has nothing to say, not even if the entry has come back to this consumer: a
	// handler that was cancelled may well ack what it did not do.
	if d.lost.Load() {
		end.how = Lost
	}
	if d.claim(end.how) && end.how != Lost {
		s.endings <- end
	} else {
		s.release(d, d.Outcome())
	}
}

// nacked reads from the message's metadata how its nack is meant.
func (s *subscription) nacked(d *Delivery) ending {
	end := ending{d: d, how: Nacked}
	if d.msg.Metadata.Get(MetadataUncounted) == "true" {
		end.how = Deferred
	}
	wait, err := time.ParseDuration(d.msg.Metadata.Get(delay.DelayedForKey))
	if err != nil {
		wait = s.cfg.Backoff(d.attempt)
	}
	end.delay = wait
	return end
}

// finish tells Redis of endings, as many at a time as have come together while it was busy with the
// ones before. It returns when the channel is closed and everything is told; once ctx is done it does
// not try again.
func (s *subscription) finish(ctx context.Context) {
	for end := range s.endings {
		batch := []ending{end}
	collect:
		for len(batch) < endingsAtOnce {
			select {
			case more, open := <-s.endings:
				if !open {
					break collect
				}
				batch = append(batch, more)
			default:
				break collect
			}
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
		return s.group.ack(ctx, acks, s.cfg.Window)
	})
	s.write(ctx, "give back", len(backs), lost, func(ctx context.Context) ([]string, error) {
		return s.group.nack(ctx, backs)
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

// write runs one of the scripts that finish entries, and adds to lost the ids of those that it refused.
func (s *subscription) write(ctx context.Context, what string, n int, lost map[string]bool, script func(context.Context) ([]string, error)) {
	if n == 0 {
		return
	}
	var refused []string
	err := s.outage.retry(ctx, func(ctx context.Context) (err error) {
		refused, err = script(ctx)
		return err
	})
	if err != nil {
		s.log.ErrorContext(ctx, "Redis was not told of finished entries; they are delivered again when they lapse",
			"stream", s.group.stream, "what", what, "entries", n, "visibility", s.cfg.Visibility, "error", err)
	}
	for _, id := range refused {
		lost[id] = true
		s.log.WarnContext(ctx, "finished too late: the entry is in other hands, and is delivered a second time",
			"stream", s.group.stream, "entry", id, "what", what)
	}
}

// release ends a delivery on this side.
func (s *subscription) release(d *Delivery, how Outcome) {
	d.cancel(nil)
	if s.flight.leave(d) {
		s.wakeReader()
	}
	s.cfg.Observer.Finished(s.group.stream, how, time.Since(d.since))
}
