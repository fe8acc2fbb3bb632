package router

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/semaphore"

	"lockstep/events"
	"lockstep/events/stream"
)

// A message may be what kills the process that handles it. Its deaths are counted apart from its failed attempts, and
// not while it only waits, such as for its lease. They decide how it is handled next:
//
//	0, 1   like any other message
//	2      alone: no other handler of the router begins meanwhile, for a minute at most. If it ends, its deaths are forgotten.
//	       If other handlers run too long, it runs beside them, and a death then does not count: another may be its cause
//	3      not at all: it becomes a dead letter, reason "poison"
const (
	deathsAlone  = 2
	deathsPoison = 3
)

var ( // variables for tests
	aloneWait = 5 * time.Second // how long a message waits until it is alone, before it runs beside others
	aloneFor  = time.Minute     // how long it runs alone, before others run beside it
)

const (
	besideWait  = 5 * time.Second  // delay of the messages that are given back meanwhile; other processes take them
	suspectWait = 30 * time.Second // delay of those that are to run alone too
)

// errPoison is the error of a message that is not handled again.
var errPoison = events.Errorf(events.Permanent, events.ClassInternal, "the process died, hung or was cut off %d times "+
	"while it handled this, the last time alone; find the cause in its log, then retry the dead letter", deathsPoison)

// allHandlers is what a handler that runs alone acquires of a router's semaphore. Others acquire 1.
const allHandlers = math.MaxInt64

// running is the handlers of a router that run.
type running struct {
	shares  *semaphore.Weighted // one of each handler, all of one that runs alone
	suspect sync.Mutex          // of the only handler that runs alone or would like to
}

func newRunning() *running { return &running{shares: semaphore.NewWeighted(allHandlers)} }

// countDeaths is the middleware that handles a message according to its deaths. It runs under the message's lease.
func countDeaths(running *running, onPoison func(*message.Message, error)) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			delivery, ok := stream.DeliveryOf(msg)
			if !ok {
				return next(msg)
			}
			if delivery.Deaths() >= deathsPoison {
				if onPoison != nil {
					onPoison(msg, errPoison)
				}
				return nil, errPoison
			}
			suspect := delivery.Deaths() >= deathsAlone
			if suspect && !running.suspect.TryLock() {
				return nil, busy(suspectWait, "another message that may kill the process runs first")
			}
			if suspect {
				defer running.suspect.Unlock()
			}
			share, err := running.enter(msg.Context(), suspect)
			if err != nil {
				return nil, err
			}
			defer func() { running.shares.Release(share) }()
			alone := share == allHandlers
			if err := delivery.Begin(msg.Context(), alone || !suspect); err != nil {
				return nil, &events.Error{
					Disposition: events.Contention, Scope: events.ScopeUs, Class: events.ClassInternal, Err: err,
				}
			}
			if alone {
				stop := running.letIn(msg.Context(), delivery)
				defer func() {
					share = stop()
					if msg.Context().Err() == nil { // it was not cut off
						delivery.Survived()
					}
				}()
			}
			return next(msg)
		}
	}
}

// enter returns the share of the running handlers that the caller must release: all if it is alone.
func (r *running) enter(ctx context.Context, alone bool) (share int64, err error) {
	if alone {
		ctx, cancel := context.WithTimeout(ctx, aloneWait)
		defer cancel()
		if r.shares.Acquire(ctx, allHandlers) == nil {
			return allHandlers, nil
		}
	}
	if !r.shares.TryAcquire(1) {
		return 0, busy(besideWait, "a message that may kill the process runs alone")
	}
	return 1, nil
}

// letIn lets other handlers run beside one that has run alone for long, whose death then does not count any more. stop
// returns the share that it has left.
func (r *running) letIn(ctx context.Context, delivery *stream.Delivery) (stop func() (share int64)) {
	ctx, cancel := context.WithCancel(ctx)
	share := make(chan int64, 1)
	go func() {
		for {
			select {
			case <-time.After(aloneFor):
			case <-ctx.Done():
				share <- allHandlers
				return
			}
			if delivery.Begin(ctx, false) == nil {
				r.shares.Release(allHandlers - 1)
				share <- 1
				return
			}
		}
	}()
	return func() int64 {
		cancel()
		return <-share
	}
}

// busy returns the error of a message that is given back, uncounted.
func busy(after time.Duration, why string) error {
	return &events.Error{
		Disposition: events.Contention, Scope: events.ScopeNone, Class: events.ClassBusy, RetryAfter: after,
		Err: errors.New(why),
	}
}
