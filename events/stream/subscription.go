package stream

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// flushTimeout is how long a closing subscription tries to tell Redis what became of its entries.
const flushTimeout = 5 * time.Second

// subscription is one consumer on one stream, from Subscribe to the end of its drain. Its parts, each
// a goroutine and each in a file of its own:
//
//	read    takes entries and hands them out      read.go
//	watch   tells read that there is news         watch.go
//	beat    pushes on due moments, and sweeps     beat.go
//	attend  waits for one message's end           finish.go
//	finish  tells Redis of ends, many at a time   finish.go
type subscription struct {
	cfg    SubscriberConfig
	group  *group
	outage *outage
	log    *slog.Logger
	base   context.Context // what messages' contexts derive from

	out      chan *message.Message
	flight   *flight
	endings  chan ending
	attends  sync.WaitGroup
	wake     chan struct{} // has a token when taking again may bring something
	lastBeat atomic.Int64  // ns since the epoch: when everything in flight was last known to be covered

	graceOver context.Context // done when handlers are not waited for any more
	abandon   context.CancelFunc
}

func newSubscription(s *Subscriber, g *group, base context.Context) *subscription {
	graceOver, abandon := context.WithCancel(context.Background())
	return &subscription{
		cfg:       s.cfg,
		group:     g,
		outage:    s.outage,
		log:       s.cfg.Log.With("group", g.name, "consumer", g.consumer),
		base:      base,
		out:       make(chan *message.Message),
		flight:    newFlight(s.cfg.KeyLimit),
		endings:   make(chan ending, s.cfg.Window), // one for each in flight: telling of it never waits for Redis
		wake:      make(chan struct{}, 1),
		graceOver: graceOver,
		abandon:   abandon,
	}
}

// run is the whole life of a subscription. Nothing it starts outlives it.
func (s *subscription) run(stop context.Context) {
	watcher := newWatcher(s)
	beating, stopBeating := context.WithCancel(context.Background())
	finishing, stopFinishing := context.WithCancel(context.Background())
	defer stopBeating()
	defer stopFinishing()
	defer s.abandon()

	var watch, beat, finish sync.WaitGroup
	watch.Go(func() { watcher.run(stop) })
	watch.Go(func() { runEvery(stop, s.cfg.Sweep, s.sweep) })
	beat.Go(func() { runEvery(beating, s.cfg.Visibility/4, s.beat) })
	finish.Go(func() { s.finish(finishing) })

	s.read(stop, watcher)
	s.drain()

	// All handlers have ended or been abandoned: no more endings after those of the attendants.
	flush := time.AfterFunc(flushTimeout, stopFinishing)
	defer flush.Stop()
	s.attends.Wait()
	close(s.endings)
	finish.Wait()
	s.unpark(stop) // what was sent away need not wait for us
	stopBeating()
	beat.Wait()
	watch.Wait()

	if err := withTimeout(stop, func(ctx context.Context) error { return s.group.leave(ctx, s.group.consumer) }); err != nil && !unavailable(err) && !noGroup(err) {
		s.log.Warn("cannot leave the consumer group", "stream", s.group.stream, "error", err)
	}
	close(s.out)
}

// drain returns when nothing is in flight, or when the grace is over and everything has been
// cancelled.
func (s *subscription) drain() {
	grace := time.NewTimer(s.cfg.Grace)
	defer grace.Stop()
	for s.flight.len() > 0 {
		select {
		case <-s.flight.freed:
			continue
		case <-grace.C:
		}
		for _, d := range s.flight.all() {
			d.cancel(ErrClosed)
		}
		s.abandon()
		return
	}
}

// every calls do once every so often until ctx is done.
func runEvery(ctx context.Context, often time.Duration, do func(context.Context)) {
	ticker := time.NewTicker(often)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			do(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// look makes read take again soon.
func (s *subscription) wakeReader() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
