package stream

import (
	"context"
	"time"
)

// beatBatch bounds the entries of one script call, and with it how long Redis does nothing else.
const beatBatch = 256

// beat pushes on the due moment of what is in flight, and tells those who have lost their entry.
// What was taken a moment ago is left out: it has most of its time before it, and with quick handlers
// that is everything.
//
// When Redis does not answer, deliveries go on. Whether an entry is still ours, the script that
// finishes it decides.
func (s *subscription) beat(ctx context.Context) {
	began := time.Now()
	held := make(map[string]*Delivery)
	var ids []string
	for _, d := range s.flight.all() {
		if began.Sub(d.since) >= s.cfg.Visibility/4 && !d.lost.Load() {
			held[d.entry] = d
			ids = append(ids, d.entry)
		}
	}
	for len(ids) > 0 {
		batch := ids[:min(len(ids), beatBatch)]
		ids = ids[len(batch):]
		var lost []string
		err := withTimeout(ctx, func(ctx context.Context) (err error) {
			lost, err = s.group.beat(ctx, batch, s.cfg.Visibility.Milliseconds())
			return err
		})
		if err != nil {
			if !noGroup(err) { // read makes it anew
				s.outage.failed(ctx, err)
			}
			return
		}
		s.outage.answered(ctx, s.cfg.Visibility/2) // with a full window nobody else may be asking
		for _, id := range lost {
			held[id].lose()
		}
	}
	s.lastBeat.Store(began.UnixNano())
}

// overdue is true when heartbeats are so late that entries in flight may be about to lapse.
func (s *subscription) overdue() bool {
	return s.flight.len() > 0 && time.Since(time.Unix(0, s.lastBeat.Load())) > s.cfg.Visibility/2
}

// sweep gives a due moment to pending entries that have none, and removes consumers that are gone.
func (s *subscription) sweep(ctx context.Context) {
	from, total := "-", int64(0)
	for from != "" && ctx.Err() == nil {
		err := withTimeout(ctx, func(ctx context.Context) error {
			repaired, next, err := s.group.sweep(ctx, from, s.cfg.Visibility.Milliseconds())
			from, total = next, total+repaired
			return err
		})
		if err != nil {
			if !noGroup(err) {
				s.outage.failed(ctx, err)
			}
			return
		}
	}
	if total > 0 {
		s.log.WarnContext(ctx, "pending entries had no due moment; they are delivered again unless their consumers still have them",
			"stream", s.group.stream, "entries", total)
	}
	s.removeDeadConsumers(ctx)
}

// removeDeadConsumers removes consumers that have not been heard of for long and have nothing pending: what each
// kill -9 leaves behind. It harms none that lives; taking entries brings its name back.
func (s *subscription) removeDeadConsumers(ctx context.Context) {
	err := withTimeout(ctx, func(ctx context.Context) error {
		all, err := s.group.redis.XInfoConsumers(ctx, s.group.stream, s.group.name).Result()
		for _, c := range all {
			if err == nil && c.Pending == 0 && c.Idle > 10*s.cfg.Visibility {
				err = s.group.leave(ctx, c.Name)
			}
		}
		return err
	})
	if err != nil {
		s.log.DebugContext(ctx, "cannot remove consumers that are gone", "stream", s.group.stream, "error", err)
	}
}
