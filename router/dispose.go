package router

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/locking"
)

// Disposer is the one place where an error becomes what it means for the message: comes back
// later, failed result, or dead letter. See the package's table.
type Disposer struct {
	Retry Retry
	// Failed makes what is published about a message that is given up for err after some attempts.
	// Nil: nothing is. It may return nothing for a message of which nothing can be said.
	Failed func(msg *message.Message, err error, attempts int) []stream.Output
	// GivenUp is told of each message that was given up, once that is settled: one that another consumer has
	// meanwhile is for that one to give up. Nil: nobody is.
	GivenUp func(msg *message.Message, err error, attempts int)
	Log     *slog.Logger // default slog.Default
}

// Middleware applies the disposer. With Lockstep's own subscriber nothing that it could dispose of
// comes out as an error; over another Pub/Sub the error stays, with the delay asked for in the
// message's metadata.
func (d Disposer) Middleware(next message.HandlerFunc) message.HandlerFunc {
	d.Retry = d.Retry.withDefaults()
	if d.Log == nil {
		d.Log = slog.Default()
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		delivery, ok := stream.DeliveryOf(msg)
		var produced []*message.Message
		var err error
		if ok && (delivery.Attempt()-1)/lapseFactor >= d.Retry.MaxAttempts {
			err = errNeverEnded
		} else {
			produced, err = next(msg)
		}
		if err == nil {
			return produced, nil
		}
		told(msg, err)
		if !ok {
			attempt, _ := strconv.Atoi(msg.Metadata.Get(metadataAttempt))
			msg.Metadata.Set(metadataAttempt, strconv.Itoa(attempt+1))
			delay.Message(msg, delay.For(d.Retry.delay(attempt+1)))
			return nil, err
		}
		// What is decided here should reach Redis even when the message's context has ended. If Redis
		// is away for longer, the subscriber gives the message back when it can.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(msg.Context()), disposeTimeout)
		defer cancel()
		if err = d.dispose(ctx, msg, delivery, err); errors.Is(err, stream.ErrNotOwner) {
			d.Log.WarnContext(ctx, "message is another consumer's now", "job", msg.UUID, "entry", delivery.Entry(), "error", oneLine(err))
			err = nil
		}
		return nil, err
	}
}

// lapseFactor times the attempts is when a message is given up of which no handler ever reports an
// error, for it may be the one that kills whoever works on it. That is late because a process that
// dies costs an attempt to all that it had in flight, most of which only waited.
const lapseFactor = 8

var errNeverEnded = errors.New("too many attempts never ended: the process died, hung or was cut off each time")

// The delay of a message that a newer version is to have. It doubles no more often than newerDoublings at first, for
// it is chance whose turn it is next. Where newerPatience turns have brought no newer one there may be none for days,
// or ever, as when the type is a mistake: with each so many more turns it doubles once more.
const (
	newerDoublings = 4
	newerPatience  = 64
)

func (r Retry) newer(delivered int) time.Duration {
	return r.delay(min(delivered, newerDoublings) + delivered/newerPatience)
}

// disposeTimeout bounds how long a disposition tries to reach Redis.
const disposeTimeout = 10 * time.Second

// metadataAttempt counts attempts where the Pub/Sub delivers the same message again in memory.
const metadataAttempt = "lockstep_attempt"

func (d Disposer) dispose(ctx context.Context, msg *message.Message, delivery *stream.Delivery, err error) error {
	log := d.Log.With("job", msg.UUID, "entry", delivery.Entry(), "attempt", delivery.Attempt(),
		"class", string(events.ClassOf(err)), "error", oneLine(err))
	switch disposition := events.DispositionOf(err); {
	case errors.Is(err, stream.ErrNotOwner):
		return err
	case errors.Is(context.Cause(msg.Context()), stream.ErrSettled):
		log.DebugContext(ctx, "message is settled along with another")
		return nil
	case errors.Is(context.Cause(msg.Context()), stream.ErrClosed), events.ClassOf(err) == events.ClassShutdown:
		log.InfoContext(ctx, "message goes back: stopping")
		return giveBack(ctx, msg, delivery, 0, false)
	case disposition == events.Malformed:
		log.ErrorContext(ctx, "message is malformed: dead letter")
		return d.bury(ctx, msg, delivery, "malformed", err)
	case skipped(err):
		log.InfoContext(ctx, "message skipped")
		return d.giveUp(ctx, msg, delivery, err)
	case disposition == events.Permanent:
		log.ErrorContext(ctx, "message failed for good")
		return d.giveUp(ctx, msg, delivery, err)
	case d.Retry.tooOld(delivery.Entry(), delivery.Delivered()):
		log.ErrorContext(ctx, "message is too old to be tried again: dead letter", "max_age", d.Retry.MaxAge)
		return d.bury(ctx, msg, delivery, "too old", err)
	case events.ClassOf(err) == events.ClassNewer:
		wait := d.Retry.newer(delivery.Delivered())
		log.DebugContext(ctx, "message goes back: it is for a newer version", "delay", wait)
		return giveBack(ctx, msg, delivery, wait, false)
	case disposition == events.Contention:
		wait := cmp.Or(events.RetryAfter(err), d.Retry.delay(delivery.Delivered()))
		log.InfoContext(ctx, "message goes back: contention", "delay", wait)
		return giveBack(ctx, msg, delivery, wait, false)
	case delivery.Attempt() >= d.Retry.MaxAttempts:
		log.ErrorContext(ctx, "message failed, attempts used up: dead letter")
		return d.bury(ctx, msg, delivery, "attempts used up", err)
	default:
		wait := cmp.Or(events.RetryAfter(err), d.Retry.delay(delivery.Attempt()))
		log.WarnContext(ctx, "message failed, goes back", "delay", wait)
		return giveBack(ctx, msg, delivery, wait, true)
	}
}

// skipped reports whether err says that a message need not be worked on: it was not to wait for its key, or for the
// circuit of its repository, or nobody watches that any more.
func skipped(err error) bool {
	if errors.Is(err, locking.ErrHeld) {
		return true
	}
	class := events.ClassOf(err)
	return events.DispositionOf(err) == events.Permanent && (class == events.ClassCircuit || class == events.ClassUnwatched)
}

// giveBack nacks a message. What is meant is left in its metadata too, for the subscriber to go by if
// Redis is away for longer than this tries.
func giveBack(ctx context.Context, msg *message.Message, delivery *stream.Delivery, wait time.Duration, failed bool) error {
	delay.Message(msg, delay.For(wait))
	msg.Metadata.Set(stream.MetadataUncounted, strconv.FormatBool(!failed))
	return delivery.Nack(ctx, wait, failed)
}

// giveUp tells those who wait for the message what became of it.
func (d Disposer) giveUp(ctx context.Context, msg *message.Message, delivery *stream.Delivery, err error) error {
	return d.givenUp(msg, delivery, err, delivery.Settle(ctx, d.failed(msg, delivery, err)))
}

// bury makes a dead letter, too.
func (d Disposer) bury(ctx context.Context, msg *message.Message, delivery *stream.Delivery, reason string, err error) error {
	letter := stream.Reason{Reason: reason, Error: oneLine(err), Attempts: delivery.Attempt()}
	return d.givenUp(msg, delivery, err, delivery.DeadLetter(ctx, letter, d.failed(msg, delivery, err)))
}

func (d Disposer) failed(msg *message.Message, delivery *stream.Delivery, err error) (s stream.Settlement) {
	if d.Failed != nil {
		s.Outputs = d.Failed(msg, err, delivery.Attempt())
	}
	return s
}

// givenUp tells of a message that is settled, and passes on why one is not.
func (d Disposer) givenUp(msg *message.Message, delivery *stream.Delivery, err, settled error) error {
	if settled == nil && d.GivenUp != nil {
		d.GivenUp(msg, err, delivery.Attempt())
	}
	return settled
}

// oneLine is the error's text on one line of bounded length, for logs, results and dead letters.
func oneLine(err error) string {
	const most = 1000
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}
