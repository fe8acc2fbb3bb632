package serve

import (
	"context"
	"net/http"
)

// turn is a request's turn to negotiate and to make its pack: limits.maxPacks have one at a time. It is not safe for
// concurrent use.
type turn struct {
	handler *Handler
	sender  string
	begun   bool
}

// begin waits for the turn until ctx is done.
func (t *turn) begin(ctx context.Context) error {
	select {
	case t.handler.working <- struct{}{}:
		t.begun = true
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// end ends the turn if it has begun.
func (t *turn) end() {
	if t.begun {
		t.begun = false
		<-t.handler.working
	}
}

// restingPerPack is the number of packs, for each of maxPacks, that may wait for slow clients at a time. One
// sender may have half of them.
const restingPerPack = 16

// rest gives the turn to others while the writer of a pack waits for its clients, and waits for another turn
// unless ctx is done. It fails if too many packs wait, as each needs memory.
func (t *turn) rest(ctx context.Context, wait func() error) error {
	if !t.handler.resting.take(t.sender, 1) {
		return &Refusal{http.StatusServiceUnavailable, "too many slow clients at a time: try again"}
	}
	defer t.handler.resting.give(t.sender, 1)
	t.end()
	if err := wait(); err != nil {
		return err
	}
	return t.begin(ctx)
}
