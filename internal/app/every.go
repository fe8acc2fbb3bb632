package app

import (
	"context"
	"math/rand/v2"
	"time"

	"lockstep/internal/redisx"
)

// turn returns how long the claim of a process lasts that does for all what each does by runEvery: less than
// the shortest pause, so that its next turn is not lost to its own claim.
func turn(interval time.Duration) time.Duration { return interval * 8 / 10 }

// runEvery calls fn about once per interval until ctx is done, or never if the interval is 0. Jitter spreads
// out processes that start together.
func runEvery(ctx context.Context, interval time.Duration, fn func()) {
	if interval == 0 {
		return
	}
	for wait := rand.N(interval); redisx.Pause(ctx, wait); wait = interval*9/10 + rand.N(interval/5) {
		fn()
	}
}
