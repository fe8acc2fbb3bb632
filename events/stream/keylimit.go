package stream

import (
	"context"
	"math/rand/v2"
	"time"
)

// No key has more than its share of the window. What comes beyond it is sent away: parked, on the
// shelf, with a delay after which it comes back in any case, and recalled when half of the share is
// free again.

// park gives entries back for which their keys have no room.
func (s *subscription) park(ctx context.Context, overLimit []*Delivery) {
	for len(overLimit) > 0 {
		batch := overLimit[:min(len(overLimit), endingsAtOnce)]
		overLimit = overLimit[len(batch):]
		backs := make([]giveBack, len(batch))
		for i, d := range batch {
			backs[i] = giveBack{id: d.entry, key: d.key, delayMS: ceilMS(s.parkDelay()), how: early}
		}
		s.write(ctx, "send away", len(backs), make(map[string]bool), func(ctx context.Context) ([]string, error) {
			return s.group.nack(ctx, backs)
		})
	}
}

// away is how long an entry is sent away for that nobody recalls.
func (s *subscription) parkDelay() time.Duration {
	return s.cfg.Visibility/2 + rand.N(s.cfg.Visibility/2)
}

// recall makes entries due for which there is room now.
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
	if err != nil && !noGroup(err) { // take makes it anew
		s.outage.failed(ctx, err)
	}
}
