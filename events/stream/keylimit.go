package stream

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// Entries over the per-key limit are parked: they are added to the parked index with a delay after which they are
// redelivered in any case, and are unparked early, oldest first, when a delivery of their key ends.

func (s *subscription) park(ctx context.Context, overLimit []*Delivery) {
	for batch := range slices.Chunk(overLimit, endingsAtOnce) {
		backs := make([]giveBack, len(batch))
		for i, d := range batch {
			backs[i] = giveBack{id: d.entry, key: d.key, delayMS: ceilMS(s.parkDelay()), how: early}
		}
		s.write(ctx, "park", len(backs), make(map[string]bool), func(ctx context.Context) ([]string, error) {
			return s.group.nack(ctx, backs)
		})
	}
}

// parkDelay returns the delay after which a parked entry is redelivered even if it is not unparked.
func (s *subscription) parkDelay() time.Duration {
	return s.cfg.Visibility/2 + rand.N(s.cfg.Visibility/2)
}

// unpark makes parked entries of the keys that have capacity again due.
func (s *subscription) unpark(ctx context.Context) {
	free := s.flight.keysWithCapacity()
	for keys := range slices.Chunk(slices.Collect(maps.Keys(free)), endingsAtOnce) {
		var more []bool
		err := withTimeout(ctx, func(ctx context.Context) (err error) {
			more, err = s.group.unpark(ctx, keys, free)
			return err
		})
		for i, key := range keys {
			if err != nil || more[i] {
				s.flight.markOverLimit(key)
			}
		}
		if err != nil && !noGroup(err) { // take re-creates the group
			s.outage.failed(ctx, err)
		}
	}
}
