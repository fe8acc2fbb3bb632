package observe

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/locking"
)

// Attributes of spans beyond OpenTelemetry's for messaging. None contains a URL, a credential or a payload.
const (
	attrRepo      = attribute.Key("lockstep.repo")
	attrJob       = attribute.Key("lockstep.job")
	attrApp       = attribute.Key("lockstep.app")
	attrRef       = attribute.Key("lockstep.ref")
	attrOperation = attribute.Key("lockstep.operation")
	attrFence     = attribute.Key("lockstep.fence")
	attrWorker    = attribute.Key("lockstep.worker")
	attrAttempt   = attribute.Key("lockstep.attempt")   // counted ones
	attrDelivered = attribute.Key("lockstep.delivered") // number of deliveries, counted as an attempt or not
	attrOutcome   = attribute.Key("lockstep.outcome")   // of the change: synced, unchanged, …
	attrEnd       = attribute.Key("lockstep.end")       // of the delivery: settled, nacked, deferred, …
	attrCoalesced = attribute.Key("lockstep.coalesced") // number of changes settled along with this one
)

const tracerName = "lockstep/router" // tracer of a delivery's child spans

// propagator reads and writes W3C Trace Context in message metadata. Baggage is not passed on.
var propagator propagation.TraceContext

// startSpan starts the delivery's span. A message that returns to the stream because of contention or shutdown has not
// failed: the span's status stays unset, and lockstep.end has the reason.
func (d *Delivery) startSpan(tracer trace.Tracer, msg *message.Message, topic string) {
	ctx := propagator.Extract(d.ctx, propagation.MapCarrier(msg.Metadata))
	d.ctx, d.span = tracer.Start(ctx, "process "+topic, trace.WithSpanKind(trace.SpanKindConsumer))
	if !d.span.IsRecording() {
		return
	}
	d.span.SetAttributes(semconv.MessagingDestinationName(topic),
		semconv.MessagingOperationName("process"), semconv.MessagingOperationTypeProcess)
	if d.delivery == nil {
		d.span.SetAttributes(semconv.MessagingMessageID(msg.UUID))
		return
	}
	d.span.SetAttributes(semconv.MessagingSystemKey.String("redis"), semconv.MessagingConsumerGroupName(d.delivery.Group()),
		semconv.MessagingMessageID(d.delivery.Entry()), attrAttempt.Int(d.delivery.Attempt()), attrDelivered.Int(d.delivery.Delivered()))
}

// End ends the delivery's span.
func (d *Delivery) End() {
	if d.delivery != nil && d.span.IsRecording() {
		d.span.SetAttributes(attrEnd.String(string(d.delivery.Outcome())))
	}
	d.span.End()
}

// Describe adds attributes of the change and the name of the worker to the span.
func (d *Delivery) Describe(worker string, change events.Change) {
	if !d.span.IsRecording() {
		return
	}
	d.span.SetAttributes(attrWorker.String(worker), attrOperation.String(change.Type.Operation()),
		attrRepo.String(change.Repo.String()), attrJob.String(change.ID))
	if !change.Ref.IsZero() {
		d.span.SetAttributes(attrRef.String(change.Ref.String()))
	}
	if change.App != "" {
		d.span.SetAttributes(attrApp.String(change.App))
	}
}

// Error adds the handler's error to the span. ctx is the message's context.
func (d *Delivery) Error(ctx context.Context, err error) {
	if errors.Is(context.Cause(ctx), stream.ErrSettled) {
		d.span.SetAttributes(attrOutcome.String(Coalesced))
		return
	}
	setError(d.span, err)
}

// The steps of the router.
const (
	LeaseWait = "lease wait"
	Settle    = "settle"
)

// Step follows a step of the router. The caller calls end with the step's error, or nil.
func (d *Delivery) Step(name string) (end func(error)) {
	span := d.child(name)
	return func(err error) {
		if name == LeaseWait && err == nil {
			d.leased = time.Now()
		}
		endSpan(span, err)
	}
}

func (d *Delivery) child(name string) trace.Span {
	if !d.span.IsRecording() {
		return noop.Span{}
	}
	_, span := d.span.TracerProvider().Tracer(tracerName).Start(d.ctx, name)
	return span
}

func endSpan(span trace.Span, err error) {
	setError(span, err)
	span.End()
}

// setError adds err, if any, to a span. Contention and skipped messages do not count as failures.
func setError(span trace.Span, err error) {
	if err == nil || !span.IsRecording() {
		return
	}
	span.SetAttributes(semconv.ErrorTypeKey.String(string(events.ClassOf(err))))
	if events.DispositionOf(err) != events.Contention && !Skipped(err) {
		span.SetStatus(codes.Error, OneLine(err))
	}
}

// Skipped reports whether err means that a message need not be handled: its key is held and its policy is
// [locking.Skip], its repository's circuit is open, or the watch that requested it is gone.
func Skipped(err error) bool {
	if errors.Is(err, locking.ErrHeld) {
		return true
	}
	switch events.ClassOf(err) {
	case events.ClassCircuit, events.ClassUnwatched:
		return events.DispositionOf(err) == events.Permanent
	}
	return false
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

// Coalesce follows a change that is about to be settled along with the delivery's own. Its span and its outputs belong to
// the change's own trace; the span links to the delivery's span. A change without a trace joins the delivery's. The caller
// calls settled once the change is settled.
func (d *Delivery) Coalesce(change events.Change, sibling stream.Sibling, outputs []stream.Output) (settled func()) {
	ctx, span := d.ctx, trace.Span(noop.Span{})
	own := trace.SpanContextFromContext(propagator.Extract(context.Background(), propagation.MapCarrier(sibling.Metadata)))
	if d.span.SpanContext().IsValid() && own.IsValid() {
		ctx, span = d.span.TracerProvider().Tracer(tracerName).Start(trace.ContextWithRemoteSpanContext(ctx, own), "coalesce "+d.delivery.Stream(),
			trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(trace.Link{SpanContext: d.span.SpanContext()}))
		span.SetAttributes(semconv.MessagingMessageID(sibling.Entry), attrOutcome.String(Coalesced))
	}
	Inject(ctx, outputs)
	return func() {
		d.events(Event{Kind: Ended, Timeline: queued(change, sibling.Entry).ended(Coalesced, time.Now())})
		span.End()
	}
}

// CoalescedSoFar reports how many changes have been settled along with the delivery's own.
func (d *Delivery) CoalescedSoFar(n int) { d.span.SetAttributes(attrCoalesced.Int(n)) }
