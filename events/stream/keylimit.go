package stream

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// Entries over the per-key limit are parked: they are added to the parked index with a delay after which they are
// redelivered in any case, and are unparked early when half of the limit is free.

func (s *subscription) park(ctx context.Context, overLimit []*Delivery) {
	for batch := range slices.Chunk(overLimit, endingsAtOnce) {
		backs := make([]giveBack, len(batch))
		for i, d := range batch {
			backs[i] = giveBack{id: d.entry, key: d.key, delayMS: ceilMS(s.parkDelay()), how: early}
		}
		s.write(ctx, "send away", len(backs), make(map[string]bool), func(ctx context.Context) ([]string, error) {
			return s.group.nack(ctx, backs)
		})
	}
}

// parkDelay returns the delay after which a parked entry is redelivered even if it is not unparked.
func (s *subscription) parkDelay() time.Duration {
	return s.cfg.Visibility/2 + rand.N(s.cfg.Visibility/2)
}

func (s *subscription) unpark(ctx context.Context) {
	var err error
	for key, room := range s.flight.keysWithCapacity() {
		n := room
		if err == nil {
			err = withTimeout(ctx, func(ctx context.Context) (err error) {
				n, err = s.group.unpark(ctx, key, room)
				return err
			})
		}
		if err != nil || n == room { // there may be more
			s.flight.markOverLimit(key)
		}
	}
	if err != nil && !noGroup(err) { // take re-creates the group
		s.outage.failed(ctx, err)
	}
}
