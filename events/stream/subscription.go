package stream

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

const flushTimeout = 5 * time.Second // how long a closing subscription tries to write the ends of its deliveries

// subscription is one consumer of one stream, from Subscribe until it is drained. Its goroutines:
//
//	read          takes entries and hands them out         read.go
//	watch         wakes read when there are new entries    watch.go
//	beat          sends heartbeats, and sweeps             beat.go
//	awaitHandler  waits for the end of one handler         finish.go
//	finish        writes ends to Redis, in batches         finish.go
type subscription struct {
	cfg    SubscriberConfig
	group  *group
	outage *outage
	log    *slog.Logger
	base   context.Context // parent of the messages' contexts; its end ends the subscription without grace

	out     chan *message.Message
	flight  *flight
	endings chan ending
	attends sync.WaitGroup
	wake    chan struct{} // has a token if read should try again
	started time.Time
	sweeps  int       // sweeps so far
	heard   time.Time // last heartbeat of the consumer, or read that returned entries; used by read alone

	graceOver context.Context // done when the grace period ends
	abandon   context.CancelFunc
}

func newSubscription(s *Subscriber, g *group, base context.Context) *subscription {
	graceOver, abandon := context.WithCancel(context.Background())
	return &subscription{
		cfg: s.cfg, group: g, outage: s.outage, log: s.cfg.Log.With("group", g.name, "consumer", g.consumer), base: base,
		out: make(chan *message.Message), flight: newFlight(), wake: make(chan struct{}, 1),
		started:   time.Now(),
		endings:   make(chan ending, s.cfg.Window), // one per delivery in flight, so that a send never blocks
		graceOver: graceOver, abandon: abandon,
	}
}

// run runs a subscription. It returns when every goroutine that it started has ended.
func (s *subscription) run(stop context.Context) {
	watcher := newWatcher(s)
	beating, stopBeating := context.WithCancel(context.Background())
	finishing, stopFinishing := context.WithCancel(context.Background())
	defer stopBeating()
	defer stopFinishing()
	defer s.abandon()

	var watch, beat, finish sync.WaitGroup
	watch.Go(func() { watcher.run(stop) })
	watch.Go(func() { runEvery(stop, s.cfg.ClaimInterval, s.sweep) })
	beat.Go(func() { runEvery(beating, s.cfg.MaxIdleTime/4, s.beat) })
	finish.Go(func() { s.finish(finishing) })

	s.read(stop, watcher)
	s.drain()

	// All handlers have ended or been abandoned, so only their awaitHandler goroutines can add endings.
	flush := time.AfterFunc(flushTimeout, stopFinishing)
	defer flush.Stop()
	s.attends.Wait()
	close(s.endings)
	finish.Wait()
	s.unpark(stop) // other consumers can take these at once
	stopBeating()
	beat.Wait()
	_, err := RemoveConsumer(stop, s.group.redis, s.group.stream, s.group.name, s.group.consumer)
	if err != nil && !unavailable(err) && !noGroup(err) {
		s.log.Warn("cannot leave the consumer group", "stream", s.group.stream, "error", err)
	}
	close(s.out)
	watch.Wait() // a blocked read may take a second to return
}

// drain returns when nothing is in flight or, after cancelling everything, at the end of the grace period or of base.
func (s *subscription) drain() {
	grace := time.NewTimer(s.cfg.Grace)
	defer grace.Stop()
	for count, _ := s.flight.load(); count > 0; count, _ = s.flight.load() {
		select {
		case <-s.flight.freed:
			continue
		case <-grace.C:
		case <-s.base.Done():
		}
		cause := cmp.Or(context.Cause(s.base), ErrClosed)
		for _, d := range s.flight.all() {
			d.cancel(cause)
		}
		s.abandon()
		return
	}
}

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

func (s *subscription) wakeReader() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
