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
	tryTimeout = 5 * time.Second // timeout of one call
	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Second

	// aftermath is how long calls may keep failing after Redis has recovered: they were in progress when the outage
	// began, or need a new connection, which the pool refuses until its probe, once a second, succeeds.
	aftermath = 2 * time.Second
)

// outage detects when Redis becomes unavailable and available again, and logs each transition once, no matter how
// many goroutines notice it.
type outage struct {
	log *slog.Logger

	mu       sync.Mutex
	last     time.Time // when Redis last answered
	since    time.Time // zero while Redis answers, else when it last did
	reported bool      // unavailability was logged, recovery not yet
	slow     bool      // a late answer was logged, and none was in time since
	backAt   time.Time // when recovery was last logged
	longEnd  time.Time // when the last long outage ended
}

// failed records a failed call. Shortly after a recovery (see aftermath) it does not log: if the failure lasts, a
// later call logs it.
func (o *outage) failed(ctx context.Context, err error) {
	o.mu.Lock()
	if o.since.IsZero() {
		if o.since = o.last; o.last.IsZero() {
			o.since = time.Now()
		}
	}
	late := errors.Is(err, errLate)
	first := !o.reported && time.Since(o.backAt) >= aftermath
	if late {
		first = first && !o.slow
		o.slow = true
	} else {
		o.reported = o.reported || first
	}
	o.mu.Unlock()
	switch {
	case !first:
	case late:
		o.log.WarnContext(ctx, "Redis answers late; retrying, nothing is lost: check its load and latency", "error", err)
	case unavailable(err):
		o.log.ErrorContext(ctx, "Redis is unavailable; retrying, nothing is lost: "+
			"check that it runs and can be reached", "error", err)
	default:
		o.log.ErrorContext(ctx, "Redis refuses to serve the stream; retrying: check the key's type and the "+
			"user's permissions", "error", err)
	}
}

// answered records a successful call. An outage of at least the given duration is long.
func (o *outage) answered(ctx context.Context, long time.Duration) {
	o.mu.Lock()
	since, reported, now := o.since, o.reported, time.Now()
	if !since.IsZero() && now.Sub(since) >= long {
		o.longEnd = now
	}
	if reported {
		o.backAt = now
	}
	o.last, o.since, o.reported, o.slow = now, time.Time{}, false, false
	o.mu.Unlock()
	if reported {
		o.log.InfoContext(ctx, "Redis is back", "away", now.Sub(since).Round(time.Millisecond))
	}
}

// recent reports whether a long outage is in progress or ended less than long ago.
func (o *outage) recent(long time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.since.IsZero() && time.Since(o.since) >= long || time.Since(o.longEnd) < long
}

// retry repeats an idempotent call while Redis is unavailable, until ctx is done. If ctx is already done it tries
// once: the call records finished work, and the script decides whether it is still valid.
func (o *outage) retry(ctx context.Context, call func(context.Context) error) error {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := call(ctx)
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

// withTimeout runs calls with a timeout, detached from ctx's cancellation. A script in it has a timeout of its own.
func withTimeout(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tryTimeout)
	defer cancel()
	return call(ctx)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// unavailable reports whether Redis is unreachable or cannot serve, rather than refusing the command.
func unavailable(err error) bool {
	for _, answer := range []error{nil, redis.Nil, redis.ErrClosed, ErrGuard, ErrNotOwner, errReply} {
		if errors.Is(err, answer) {
			return false
		}
	}
	_, replied := errors.AsType[redis.Error](err)
	return !replied || CannotServe(err)
}

// CannotServe reports whether err is a reply by which Redis says that it cannot serve at present, for example
// because it is loading its data, is a replica, runs a long script or is out of memory. It returns false for an
// error that is not a reply, such as a broken connection.
func CannotServe(err error) bool {
	reply, replied := errors.AsType[redis.Error](err)
	return replied && slices.ContainsFunc([]string{
		"LOADING ", "READONLY ", "CLUSTERDOWN ", "MASTERDOWN ", "TRYAGAIN ", "BUSY ", "OOM ", "MISCONF ", "NOREPLICAS ",
		"max number of clients ",
	}, func(code string) bool { return strings.Contains(reply.Error(), code) }) // Redis 6.2 wraps the error of a script
}

// mayHaveRun reports whether a failed call may have taken effect: it was sent, and no reply arrived.
func mayHaveRun(err error) bool {
	if _, replied := errors.AsType[redis.Error](err); replied || !unavailable(err) {
		return false
	}
	op, ok := errors.AsType[*net.OpError](err)
	return !ok || op.Op != "dial"
}

func noGroup(err error) bool {
	_, replied := errors.AsType[redis.Error](err)
	return replied && strings.Contains(err.Error(), "NOGROUP")
}
