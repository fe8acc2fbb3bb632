package stream

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// The default timeouts of a blocking read.
const (
	blockOwn    = time.Second            // with its own reader, to notice a dead connection
	blockShared = 500 * time.Millisecond // with the shared client, which cannot be closed to interrupt a read
)

// watcher waits for new entries. It does not take them: a blocking read cannot set their due times in the same
// step, so entries whose reply is lost would stay without one until the sweep.
type watcher struct {
	s        *subscription
	requests chan string
	watching atomic.Bool
	failed   int // consecutive failures
}

func newWatcher(s *subscription) *watcher {
	return &watcher{s: s, requests: make(chan string, 1)}
}

// after requests a single wake-up for entries after the given ID.
func (w *watcher) after(id string) {
	if w.watching.CompareAndSwap(false, true) {
		w.requests <- id
	}
}

func (w *watcher) run(stop context.Context) {
	for {
		select {
		case id := <-w.requests:
			w.wait(stop, id)
			w.watching.Store(false)
			w.s.wakeReader()
		case <-stop.Done():
			return
		}
	}
}

// wait returns when there is an entry after id, or on an error.
func (w *watcher) wait(stop context.Context, id string) {
	args := &redis.XReadArgs{Streams: []string{w.s.group.stream, id}, Count: 1, Block: w.s.cfg.BlockTime}
	for stop.Err() == nil {
		err := w.s.cfg.reader().XRead(context.WithoutCancel(stop), args).Err()
		switch {
		case errors.Is(err, redis.Nil):
			continue
		case errors.Is(err, redis.ErrClosed) || errors.Is(err, net.ErrClosed): // Close closed the reader
		case err != nil && stop.Err() == nil:
			w.fail(stop, err)
		default:
			w.failed = 0
		}
		return
	}
}

// fail records an error. When Redis is unavailable, read notices by itself and requests no wake-up until it has taken
// an entry, so several consecutive failures mean that only this client is broken.
func (w *watcher) fail(stop context.Context, err error) {
	if w.failed++; w.failed == 5 {
		w.s.log.WarnContext(stop, "cannot wait for new entries, polling instead: check the Reader and the user's permissions",
			"stream", w.s.group.stream, "every", pollInterval, "error", err)
	}
	sleep(stop, pollInterval)
}
