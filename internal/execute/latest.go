package execute

import (
	"context"
	"sync"
	"time"
)

// Latest calls a function for names, such as those of published trees, at least once after each call of [Latest.Offer],
// and again until it succeeds. Calls for the same name do not overlap. The fields must not change after the first call
// of Offer.
type Latest struct {
	Do          func(ctx context.Context, name string) error
	First, Last time.Duration // pauses after a failure: First is doubled after each, up to Last
	AtOnce      int           // maximum number of calls at a time

	slots   chan struct{}
	running sync.WaitGroup

	mu   sync.Mutex
	open map[string]chan struct{} // names that are not done; the channel holds a newer offer
}

// Offer has the function called for a name, in the background. A call that waits after a failure is made at once.
// Nothing is called when ctx is done.
func (l *Latest) Offer(ctx context.Context, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.slots, l.open = make(chan struct{}, l.AtOnce), map[string]chan struct{}{}
	}
	again, isOpen := l.open[name]
	if isOpen {
		select {
		case again <- struct{}{}:
		default:
		}
		return
	}
	again = make(chan struct{}, 1)
	l.open[name] = again
	l.running.Go(func() { l.call(ctx, name, again) })
}

// Open returns the number of names for which the function has not succeeded since they were offered.
func (l *Latest) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// Wait waits until no call is running or to be made.
func (l *Latest) Wait() { l.running.Wait() }

func (l *Latest) call(ctx context.Context, name string, again chan struct{}) {
	for pause := l.First; ctx.Err() == nil; {
		select {
		case l.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := l.Do(ctx, name)
		<-l.slots
		if err == nil {
			if l.done(name, again) {
				return
			}
			pause = l.First
			continue
		}
		select {
		case <-again:
			pause = l.First
		case <-time.After(pause):
			pause = min(2*pause, l.Last)
		case <-ctx.Done():
		}
	}
}

// done forgets a name unless it was offered again.
func (l *Latest) done(name string, again chan struct{}) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-again:
		return false
	default:
		delete(l.open, name)
		return true
	}
}
