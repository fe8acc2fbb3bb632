package router

import (
	"context"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"lockstep/events"
	"lockstep/events/stream"
)

// Attributes of spans beyond OpenTelemetry's for messaging.
const (
	attrAttempt   = attribute.Key("lockstep.attempt")   // counted ones
	attrDelivered = attribute.Key("lockstep.delivered") // number of deliveries, counted as an attempt or not
	attrEnd       = attribute.Key("lockstep.end")       // of the delivery: settled, nacked, deferred, …
)

const tracerName = "lockstep/router" // tracer of a delivery's child spans

// propagator reads and writes W3C Trace Context in message metadata. Baggage is not passed on.
var propagator propagation.TraceContext

// Trace is the middleware that creates a span for each delivery, as a child of the span in the message's
// metadata. It must be the outermost one. A message that returns to the stream because of contention or
// shutdown has not failed: the span's status stays unset, and lockstep.end has the reason.
func Trace(tracer trace.Tracer, topic string) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			before := msg.Context()
			delivery, ok := stream.DeliveryOf(msg)
			ctx := propagator.Extract(before, propagation.MapCarrier(msg.Metadata))
			ctx, span := tracer.Start(ctx, "process "+topic, trace.WithSpanKind(trace.SpanKindConsumer))
			msg.SetContext(ctx)
			if span.IsRecording() {
				describe(span, msg, delivery, topic)
			}
			defer func() {
				msg.SetContext(before)
				if ok && delivery.Outcome() != "" {
					span.SetAttributes(attrEnd.String(delivery.Outcome()))
				}
				span.End()
			}()
			return next(msg)
		}
	}
}

// describe adds attributes of a delivery, which is nil for a message of another Pub/Sub.
func describe(span trace.Span, msg *message.Message, delivery *stream.Delivery, topic string) {
	span.SetAttributes(semconv.MessagingDestinationName(topic),
		semconv.MessagingOperationName("process"), semconv.MessagingOperationTypeProcess)
	if delivery == nil {
		span.SetAttributes(semconv.MessagingMessageID(msg.UUID))
		return
	}
	span.SetAttributes(semconv.MessagingSystemKey.String("redis"),
		semconv.MessagingConsumerGroupName(delivery.Group()), semconv.MessagingMessageID(delivery.Entry()),
		attrAttempt.Int(delivery.Attempt()), attrDelivered.Int(delivery.Delivered()))
}

// StartSpan starts a child of the delivery's span in ctx, which is recorded if that one is.
func StartSpan(ctx context.Context, name string) trace.Span {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return noop.Span{}
	}
	_, span := parent.TracerProvider().Tracer(tracerName).Start(ctx, name)
	return span
}

// EndSpan ends a span with err, which may be nil.
func EndSpan(span trace.Span, err error) {
	setError(span, err)
	span.End()
}

// setError adds err, if any, to a span. An error by which nothing has failed, such as contention, leaves the
// status unset.
func setError(span trace.Span, err error) {
	if err == nil || !span.IsRecording() {
		return
	}
	span.SetAttributes(semconv.ErrorTypeKey.String(string(events.ClassOf(err))))
	if events.DispositionOf(err) != events.Contention && events.ScopeOf(err) != events.ScopeNone {
		span.SetStatus(codes.Error, OneLine(err))
	}
}

// OneLine is the error's text on one line of bounded length, for spans, logs, results and dead letters.
func OneLine(err error) string {
	const maxLength = 1000
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > maxLength {
		text = text[:maxLength] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}

// Inject adds the trace of ctx, if any, to messages that carry none.
func Inject(ctx context.Context, outputs []stream.Output) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	for _, out := range outputs {
		if out.Message == nil || out.Message.Metadata.Get("traceparent") != "" {
			continue
		}
		if out.Message.Metadata == nil {
			out.Message.Metadata = message.Metadata{}
		}
		propagator.Inject(ctx, propagation.MapCarrier(out.Message.Metadata))
	}
}
