package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// tryTimeout bounds one script call. A call in progress is never cancelled earlier, for a
	// script that has run but whose reply nobody read is the worst of both.
	tryTimeout = 5 * time.Second

	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Second

	// aftermath is how long calls may still fail once Redis has answered again: they were under way when
	// it went, or want a new connection, and the pool answers that from memory until its own probe, which
	// is one a second, has come through.
	aftermath = 2 * time.Second
)

// outage notices when Redis goes away and when it is back, and says each once however many
// goroutines run into it.
type outage struct {
	log *slog.Logger

	mu       sync.Mutex
	since    time.Time // zero while Redis answers
	reported bool      // that it went away, and not yet that it is back
	backAt   time.Time // when that was last said
	longEnd  time.Time // when the last long outage ended
}

// failed takes note that Redis did not do what was asked. In the aftermath of an outage it says nothing: if there is
// a new one, the tries after that tell.
func (o *outage) failed(ctx context.Context, err error) {
	o.mu.Lock()
	if o.since.IsZero() {
		o.since = time.Now()
	}
	first := !o.reported && time.Since(o.backAt) >= aftermath
	o.reported = o.reported || first
	o.mu.Unlock()
	switch {
	case !first:
	case unavailable(err):
		o.log.ErrorContext(ctx, "Redis is unavailable; retrying, nothing is lost: check that it runs and can be reached", "error", err)
	default:
		o.log.ErrorContext(ctx, "Redis refuses to serve the stream; retrying: check the key's type and the user's permissions", "error", err)
	}
}

// answered takes note that it did. An outage is long when it took more than the given time.
func (o *outage) answered(ctx context.Context, long time.Duration) {
	o.mu.Lock()
	since, reported := o.since, o.reported
	if !since.IsZero() && time.Since(since) >= long {
		o.longEnd = time.Now()
	}
	if reported {
		o.backAt = time.Now()
	}
	o.since, o.reported = time.Time{}, false
	o.mu.Unlock()
	if reported {
		o.log.InfoContext(ctx, "Redis is back", "away", time.Since(since).Round(time.Millisecond))
	}
}

// recent is true during a long outage, and for as long again after it.
func (o *outage) recent(long time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.since.IsZero() && time.Since(o.since) >= long || time.Since(o.longEnd) < long
}

// persist calls an idempotent script again until Redis answers or ctx is done. When ctx is done to
// begin with, there is one try: what is to be written is finished work, and the script knows best
// whether it still counts.
func (o *outage) retry(ctx context.Context, call func(context.Context) error) error {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := withTimeout(ctx, call)
		if !unavailable(err) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("gave up on an unavailable Redis: %w (%w)", context.Cause(ctx), err)
		}
		o.failed(ctx, err)
		sleep(ctx, wait)
	}
}

// once calls a script whose context is bounded, but does not end with ctx.
func withTimeout(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tryTimeout)
	defer cancel()
	return call(ctx)
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// unavailable reports whether err means that Redis could not be reached or cannot serve at present,
// as against having refused the command for good.
func unavailable(err error) bool {
	for _, answer := range []error{nil, redis.Nil, redis.ErrClosed, ErrGuard, ErrNotOwner, errReply} {
		if errors.Is(err, answer) {
			return false
		}
	}
	_, replied := errors.AsType[redis.Error](err)
	return !replied || CannotServe(err)
}

// CannotServe reports whether err is a reply by which Redis says that it cannot serve at present: it is
// loading its data, is a replica, runs a long script, has no memory left and the like. It returns false for an
// error that is not a reply, such as a broken connection.
func CannotServe(err error) bool {
	reply, replied := errors.AsType[redis.Error](err)
	return replied && slices.ContainsFunc([]string{
		"LOADING ", "READONLY ", "CLUSTERDOWN ", "MASTERDOWN ", "TRYAGAIN ", "BUSY ", "OOM ", "MISCONF ", "NOREPLICAS ",
		"max number of clients ",
	}, func(code string) bool { return strings.Contains(reply.Error(), code) }) // Redis 6.2 wraps the error of a script
}

// mayHaveRun reports whether a call that failed with err may have done its work all the same: it was
// sent, and no answer came.
func mayHaveRun(err error) bool {
	if _, replied := errors.AsType[redis.Error](err); replied || !unavailable(err) {
		return false
	}
	op, ok := errors.AsType[*net.OpError](err)
	return !ok || op.Op != "dial"
}

// noGroup reports whether err means that the consumer group is gone.
func noGroup(err error) bool {
	_, replied := errors.AsType[redis.Error](err)
	return replied && strings.Contains(err.Error(), "NOGROUP")
}
