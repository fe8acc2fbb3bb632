package stream

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// An entry whose key has a delivery in flight is parked: it is added to the parked index with a delay after which it is
// redelivered in any case, and is unparked early, oldest first, when that delivery ends.

func (s *subscription) park(ctx context.Context, waiting []*Delivery) {
	for batch := range slices.Chunk(waiting, entriesAtOnce) {
		backs := make([]giveBack, len(batch))
		for i, d := range batch {
			backs[i] = d.back(early, s.parkDelay())
		}
		s.write(ctx, "park", len(backs), make(map[string]bool), func(ctx context.Context) ([]string, error) {
			return s.group.nack(ctx, s.group.consumer, backs)
		})
	}
}

// parkDelay returns the delay after which a parked entry is redelivered even if it is not unparked.
func (s *subscription) parkDelay() time.Duration {
	return s.cfg.MaxIdleTime/2 + rand.N(s.cfg.MaxIdleTime/2)
}

// unpark makes the oldest parked entry of each key without a delivery in flight due. It returns the keys that
// have more: whoever takes the entry learns that too, so only a consumer that reads next marks them, to take
// no new entries before.
func (s *subscription) unpark(ctx context.Context) (more []string) {
	for keys := range slices.Chunk(s.flight.freeKeys(), entriesAtOnce) {
		has, err := s.group.unpark(ctx, keys)
		if err != nil {
			s.flight.markParked(keys...)
			if !noGroup(err) { // take re-creates the group
				s.outage.failed(ctx, err)
			}
			continue
		}
		for i, key := range keys {
			if has[i] {
				more = append(more, key)
			}
		}
	}
	return more
}
