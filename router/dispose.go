package router

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
	"lockstep/events/stream"
)

// Disposer decides what an error means for its message, by the table in the package documentation.
type Disposer struct {
	Retry Retry
	// Failed returns what to publish and write when a message is given up because of err. Optional. A message
	// that fails permanently and publishes nothing becomes a dead letter.
	Failed func(msg *message.Message, err error, attempts int) stream.Settlement
	// OnGiveUp is called after the decision to give up a message is settled. It is not called if another
	// consumer has taken over the message meanwhile. Optional.
	OnGiveUp func(msg *message.Message, err error, attempts int)
	// Attrs returns attributes of a message for the log. Optional.
	Attrs func(msg *message.Message) []any
	Log   *slog.Logger // default slog.Default
}

// Middleware applies the disposer. With Lockstep's own subscriber it returns an error only if it could not
// carry out its decision. With another Pub/Sub it returns the handler's error and requests the delay in the
// message's metadata.
func (d Disposer) Middleware(next message.HandlerFunc) message.HandlerFunc {
	d.Retry = d.Retry.withDefaults()
	d.Log = cmp.Or(d.Log, slog.Default())
	return func(msg *message.Message) ([]*message.Message, error) {
		delivery, ok := stream.DeliveryOf(msg)
		produced, err := next(msg)
		if err == nil {
			return produced, nil
		}
		setError(trace.SpanFromContext(msg.Context()), err)
		if !ok {
			attempt, _ := strconv.Atoi(msg.Metadata.Get(metadataAttempt))
			msg.Metadata.Set(metadataAttempt, strconv.Itoa(attempt+1))
			delay.Message(msg, delay.For(d.Retry.after(err, attempt+1)))
			return nil, err
		}
		// The decision should reach Redis even if the message's context has ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(msg.Context()), disposeTimeout)
		defer cancel()
		if err = d.dispose(ctx, msg, delivery, err); errors.Is(err, stream.ErrNotOwner) {
			d.logger(msg).WarnContext(ctx, "another consumer has taken over the message",
				"job", msg.UUID, "entry", delivery.Entry(), "error", OneLine(err))
			err = nil
		}
		return nil, err // Watermill acks after nil, without effect: the decision has ended the delivery
	}
}

// disposeTimeout bounds the attempts to record a decision in Redis.
const disposeTimeout = 10 * time.Second

// metadataAttempt counts attempts with a Pub/Sub that redelivers the same message in memory.
const metadataAttempt = "lockstep_attempt"

func (d Disposer) dispose(ctx context.Context, msg *message.Message, delivery *stream.Delivery, err error) error {
	log := d.logger(msg).With("job", msg.UUID, "entry", delivery.Entry(), "attempt", delivery.Attempt(),
		"class", string(events.ClassOf(err)), "error", OneLine(err))
	switch {
	case errors.Is(err, stream.ErrNotOwner):
		return err
	case errors.Is(context.Cause(msg.Context()), stream.ErrClosed), events.RetryAfter(err) == events.AtOnce:
		log.InfoContext(ctx, "worker is stopping, message returned to the stream")
		return giveBack(ctx, msg, delivery, 0, false)
	}
	disposition := events.DispositionOf(err)
	switch {
	case errors.Is(err, errPoison):
		log.ErrorContext(ctx, "message kills the process, now a dead letter")
		return d.giveUp(ctx, msg, delivery, err, "poison")
	case disposition == events.Malformed:
		log.ErrorContext(ctx, "message is malformed, now a dead letter")
		return d.giveUp(ctx, msg, delivery, err, "malformed")
	case disposition == events.Permanent && events.ScopeOf(err) == events.ScopeNone:
		log.InfoContext(ctx, "message skipped")
		return d.giveUp(ctx, msg, delivery, err, "")
	case disposition == events.Permanent:
		log.ErrorContext(ctx, "message failed permanently")
		return d.giveUp(ctx, msg, delivery, err, "")
	case d.Retry.tooOld(delivery.Entry(), delivery.Delivered(), delivery.Now()):
		log.ErrorContext(ctx, "message is too old to retry, now a dead letter", "max_age", d.Retry.MaxAge)
		return d.giveUp(ctx, msg, delivery, err, "too old")
	case disposition == events.Contention:
		return d.wait(ctx, log, msg, delivery, err)
	case delivery.Attempt() >= d.Retry.MaxAttempts:
		log.ErrorContext(ctx, "attempts used up, now a dead letter")
		return d.giveUp(ctx, msg, delivery, err, "attempts used up")
	}
	wait := d.Retry.after(err, delivery.Attempt())
	log.WarnContext(ctx, "attempt failed, will retry", "delay", wait)
	return giveBack(ctx, msg, delivery, wait, true)
}

// wait gives back a message that could not be handled yet, which does not count as an attempt.
func (d Disposer) wait(
	ctx context.Context, log *slog.Logger, msg *message.Message, delivery *stream.Delivery, err error,
) error {
	wait := d.Retry.after(err, delivery.Delivered())
	if events.RetryAfter(err) <= 0 {
		log.InfoContext(ctx, "lock or remote is busy, will retry", "delay", wait)
		return giveBack(ctx, msg, delivery, wait, false)
	}
	level := slog.LevelDebug // may concern thousands of messages, again and again
	if delivery.Delivered() == 1 {
		level = slog.LevelInfo
	}
	log.Log(ctx, level, "message waits, will retry", "delay", wait)
	// the nack is written after the span's end
	trace.SpanFromContext(msg.Context()).SetAttributes(attrEnd.String(stream.Deferred))
	request(msg, wait, false)
	msg.Nack() // the subscriber writes many of these at a time
	return nil
}

// logger returns the logger for a message.
func (d Disposer) logger(msg *message.Message) *slog.Logger {
	if d.Attrs == nil {
		return d.Log
	}
	return d.Log.With(d.Attrs(msg)...)
}

// giveBack nacks a message. It also leaves the delay in the metadata, for the subscriber to apply if Redis is
// unavailable for longer than disposeTimeout.
func giveBack(
	ctx context.Context, msg *message.Message, delivery *stream.Delivery, wait time.Duration, failed bool,
) error {
	request(msg, wait, failed)
	return delivery.Nack(ctx, wait, failed)
}

// request sets how the subscriber gives back the message once it is nacked.
func request(msg *message.Message, wait time.Duration, failed bool) {
	delay.Message(msg, delay.For(wait))
	msg.Metadata.Set(stream.MetadataUncounted, strconv.FormatBool(!failed))
}

// giveUp settles a message with its failed result. It dead-letters the message if a reason is given, or if
// there is no failed result: otherwise nothing would be left of it. Nothing needs to be left of a message
// that is skipped.
func (d Disposer) giveUp(
	ctx context.Context, msg *message.Message, delivery *stream.Delivery, cause error, reason string,
) (err error) {
	var s stream.Settlement
	if d.Failed != nil {
		s = d.Failed(msg, cause, delivery.Attempt())
		Inject(msg.Context(), s.Outputs)
	}
	if reason == "" && len(s.Outputs) == 0 && events.ScopeOf(cause) != events.ScopeNone {
		reason = "permanent"
	}
	if reason == "" {
		err = delivery.Settle(ctx, s)
	} else {
		err = delivery.DeadLetter(ctx, reason, events.ClassOf(cause), OneLine(cause), s)
	}
	if err == nil && d.OnGiveUp != nil {
		d.OnGiveUp(msg, cause, delivery.Attempt())
	}
	return err
}
