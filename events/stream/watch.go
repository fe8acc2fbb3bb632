package stream

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A read is blocked for at most so long: with a reader of its own so that a dead connection is
// noticed, with the shared client because nothing else can end it.
const (
	blockOwn    = time.Second
	blockShared = 500 * time.Millisecond
)

// watcher waits for news on the stream. It takes no entries: a blocking read cannot give them a due
// moment in the same step, and one that dies with entries in its reply loses them for a while.
type watcher struct {
	client   redis.UniversalClient
	block    time.Duration
	s        *subscription
	requests chan string
	watching atomic.Bool
	failed   int // so many times in a row
}

func newWatcher(s *subscription) *watcher {
	w := &watcher{client: s.cfg.Reader, block: blockOwn, s: s, requests: make(chan string, 1)}
	if w.client == nil {
		w.client, w.block = s.cfg.Redis, blockShared
	}
	return w
}

// after asks to be told, once, of entries after the one with that id.
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

// wait returns when there is an entry after id, or when it cannot tell.
func (w *watcher) wait(stop context.Context, id string) {
	args := &redis.XReadArgs{Streams: []string{w.s.group.stream, id}, Count: 1, Block: w.block}
	for stop.Err() == nil {
		err := w.client.XRead(context.WithoutCancel(stop), args).Err()
		switch {
		case errors.Is(err, redis.Nil):
			continue
		case errors.Is(err, redis.ErrClosed) || errors.Is(err, net.ErrClosed): // by Close, which ends us soon
		case err != nil && stop.Err() == nil:
			w.fail(stop, err)
		default:
			w.failed = 0
		}
		return
	}
}

// fail takes note of an error. That Redis is away read notices by itself, and does not come back here
// until it has taken something: failing several times in a row is this client's own trouble.
func (w *watcher) fail(stop context.Context, err error) {
	if w.failed++; w.failed == 5 {
		w.s.log.WarnContext(stop, "cannot wait for new entries, so they are looked for now and then: check the Reader and the user's permissions",
			"stream", w.s.group.stream, "every", pollInterval, "error", err)
	}
	sleep(stop, pollInterval)
}
