package router

import (
	"context"
	"errors"

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

// The attributes of spans, beside those of OpenTelemetry's conventions for messaging. None has a URL, a
// credential or a payload.
const (
	attrRepo      = attribute.Key("lockstep.repo")
	attrJob       = attribute.Key("lockstep.job")
	attrApp       = attribute.Key("lockstep.app")
	attrRef       = attribute.Key("lockstep.ref")
	attrOperation = attribute.Key("lockstep.operation")
	attrFence     = attribute.Key("lockstep.fence")
	attrWorker    = attribute.Key("lockstep.worker")
	attrAttempt   = attribute.Key("lockstep.attempt")   // counted ones
	attrDelivered = attribute.Key("lockstep.delivered") // how often, counted or not
	attrOutcome   = attribute.Key("lockstep.outcome")   // of the change: synced, unchanged, …
	attrEnd       = attribute.Key("lockstep.end")       // of the delivery: settled, nacked, deferred, …
	attrCoalesced = attribute.Key("lockstep.coalesced") // changes settled along with this one
)

// scope is the name under which a span's children are made.
const scope = "lockstep/router"

// propagator reads and writes W3C Trace Context, in a message's metadata. Baggage is not passed on.
var propagator propagation.TraceContext

// traced is the middleware that makes a span of each delivery, below the one that the message's metadata names.
// It is the outermost, and so knows what became of the message in the end.
//
// A message that goes back because another holds its lease, or this process stops, has not failed: its span
// says so in lockstep.end, and is no error. Each delivery has a span of its own.
func traced(route Route) message.HandlerMiddleware {
	kind := trace.WithSpanKind(trace.SpanKindConsumer)
	fixed := []attribute.KeyValue{
		semconv.MessagingDestinationName(route.Topic),
		semconv.MessagingOperationName("process"), semconv.MessagingOperationTypeProcess,
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			before := msg.Context()
			ctx := propagator.Extract(before, propagation.MapCarrier(msg.Metadata))
			ctx, span := route.Tracer.Start(ctx, "process "+route.Topic, kind)
			msg.SetContext(ctx)
			defer func() {
				msg.SetContext(before)
				span.End()
			}()
			if !span.IsRecording() {
				return next(msg)
			}
			span.SetAttributes(fixed...)
			delivery, ok := stream.DeliveryOf(msg)
			if ok {
				span.SetAttributes(semconv.MessagingSystemKey.String("redis"), semconv.MessagingConsumerGroupName(delivery.Group()),
					semconv.MessagingMessageID(delivery.Entry()), attrAttempt.Int(delivery.Attempt()), attrDelivered.Int(delivery.Delivered()))
			} else {
				span.SetAttributes(semconv.MessagingMessageID(msg.UUID))
			}
			produced, err := next(msg)
			if ok {
				span.SetAttributes(attrEnd.String(string(delivery.Outcome())))
			}
			return produced, err
		}
	}
}

// told tells the span of a message what its handler's error is.
func told(msg *message.Message, err error) {
	span := trace.SpanFromContext(msg.Context())
	if !span.IsRecording() {
		return
	}
	if errors.Is(context.Cause(msg.Context()), stream.ErrSettled) {
		span.SetAttributes(attrOutcome.String(outcomeCoalesced))
		return
	}
	span.SetAttributes(semconv.ErrorTypeKey.String(string(events.ClassOf(err))))
	if events.DispositionOf(err) != events.Contention && !skipped(err) {
		span.SetStatus(codes.Error, oneLine(err))
	}
}

// tell tells the span that ctx has, if that is recorded.
func tell(ctx context.Context, what ...attribute.KeyValue) {
	trace.SpanFromContext(ctx).SetAttributes(what...)
}

// describe tells the span that ctx has what a change is about.
func describe(ctx context.Context, source string, change events.Change) {
	if trace.SpanFromContext(ctx).IsRecording() {
		tell(ctx, attrWorker.String(source), attrOperation.String(change.Type.Operation()))
		about(ctx, change.Repo, change.ID, change.Ref, change.App)
	}
}

// describeResult tells it what a result is about.
func describeResult(ctx context.Context, result events.Result) {
	if trace.SpanFromContext(ctx).IsRecording() {
		about(ctx, result.Repo, result.ID, result.Ref, result.App)
	}
}

func about(ctx context.Context, repo events.RepoPath, job string, ref events.Ref, app string) {
	tell(ctx, attrRepo.String(repo.String()), attrJob.String(job))
	if !ref.IsZero() {
		tell(ctx, attrRef.String(ref.String()))
	}
	if app != "" {
		tell(ctx, attrApp.String(app))
	}
}

// unrecorded stands for the child of a span that nobody records.
var unrecorded trace.Span = noop.Span{}

// child begins a span of a step, below the span that ctx has. The step's own context stays ctx.
func child(ctx context.Context, name string) trace.Span {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return unrecorded
	}
	_, span := parent.TracerProvider().Tracer(scope).Start(ctx, name)
	return span
}

// end ends the span of a step that took an error, or none. That it was not its turn is no error.
func end(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		span.SetAttributes(semconv.ErrorTypeKey.String(string(events.ClassOf(err))))
		if events.DispositionOf(err) != events.Contention && !skipped(err) {
			span.SetStatus(codes.Error, oneLine(err))
		}
	}
	span.End()
}

// inject has messages carry on the trace of ctx, unless they carry one already.
func inject(ctx context.Context, outputs []stream.Output) {
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

// along begins a span for a change that is settled along with the one that ctx has a span of, in its own trace, with
// a link to that span, and has what comes of the change carry it on. A change without a trace is of this one.
func along(ctx context.Context, topic string, sibling stream.Sibling, outputs []stream.Output) trace.Span {
	answer := trace.SpanContextFromContext(ctx)
	if !answer.IsValid() {
		return unrecorded
	}
	own := trace.SpanContextFromContext(propagator.Extract(context.Background(), propagation.MapCarrier(sibling.Metadata)))
	if !own.IsValid() {
		inject(ctx, outputs)
		return unrecorded
	}
	tracer := trace.SpanFromContext(ctx).TracerProvider().Tracer(scope)
	ctx, span := tracer.Start(trace.ContextWithRemoteSpanContext(ctx, own), "coalesce "+topic,
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(trace.Link{SpanContext: answer}))
	span.SetAttributes(semconv.MessagingMessageID(sibling.Entry), attrOutcome.String(outcomeCoalesced))
	inject(ctx, outputs)
	return span
}
