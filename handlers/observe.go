package handlers

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/router"
)

// Event is a step in the processing of a change. Metrics, the list of work in progress and progress bars are
// views of them:
//
//	step                   OpenTelemetry span     Timeline            Event
//	delivered              "process {topic}"      Queued, Delivered
//	waiting for its lease  "lease wait"           Leased
//	handler begins                                                    Began
//	phase, progress        one for each phase     Began, Fetched      Progressed
//	handler returns                               Published
//	committing             "settle"
//	attempt ends                                                      Attempted
//	outcome is known       lockstep.outcome       Settled             Ended
//	settled with another   "coalesce {topic}"     Queued, Settled     Ended
//
// Package router creates the spans that do not concern changes.
type Event struct {
	Kind Kind
	Job  *Job // the same pointer in all events of one attempt; nil in Ended

	Progress events.Progress // in Progressed

	// In Attempted.
	Took     time.Duration // from the lease to the settlement
	Received int64         // bytes of packs from the remote
	Err      error         // nil if the change is settled

	// In Ended.
	Timeline Timeline      // with the outcome
	Result   events.Result // with only the class of the error if the change was given up
}

// Kind is the kind of an [Event].
type Kind int

// The kinds of events.
const (
	Began      Kind = iota // the handler is about to be called, under the lease
	Progressed             // the handler reports a phase or how far it is; only between Began and Attempted
	Attempted              // the attempt has ended; once for each Began
	Ended                  // the outcome of a change is settled
)

// Outcomes of a change that do not follow from its result.
const (
	outcomeCoalesced = "coalesced" // settled along with another change
	outcomeFailed    = "failed"
	outcomeForwarded = "forwarded" // handed over to another deployment
)

const tracerName = "lockstep/handlers" // tracer of the spans of changes settled along with another

// Attributes of spans. None contains a URL, a credential or a payload.
const (
	attrRepo      = attribute.Key("lockstep.repo")
	attrJob       = attribute.Key("lockstep.job")
	attrApp       = attribute.Key("lockstep.app")
	attrRef       = attribute.Key("lockstep.ref")
	attrOperation = attribute.Key("lockstep.operation")
	attrFence     = attribute.Key("lockstep.fence")
	attrWorker    = attribute.Key("lockstep.worker")
	attrOutcome   = attribute.Key("lockstep.outcome")   // synced, unchanged, …
	attrCoalesced = attribute.Key("lockstep.coalesced") // number of changes settled along with this one
)

func (c *Changes) report(e Event) {
	if c.Observe != nil {
		c.Observe(e)
	}
}

// describe adds attributes of the change and the name of the worker to the delivery's span in ctx.
func (c *Changes) describe(ctx context.Context, change events.Change) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attrWorker.String(c.Source), attrOperation.String(change.Type.Operation()),
		attrRepo.String(change.Repo.String()), attrJob.String(change.ID))
	if !change.Ref.IsZero() {
		span.SetAttributes(attrRef.String(change.Ref.String()))
	}
	if change.App != "" {
		span.SetAttributes(attrApp.String(change.App))
	}
}

// ended reports the outcome of a change whose delivery has its span in ctx.
func (c *Changes) ended(ctx context.Context, e Event) {
	e.Kind = Ended
	trace.SpanFromContext(ctx).SetAttributes(attrOutcome.String(e.Timeline.Outcome))
	c.report(e)
}

// delivered is the change's timeline up to a delivery, which is nil if it did not come from a stream.
func delivered(change events.Change, delivery *stream.Delivery) Timeline {
	if delivery == nil {
		return queued(change, "")
	}
	t := queued(change, delivery.Entry())
	t.Delivered, t.Again = delivery.Began(), delivery.Delivered() > 1
	return t
}

// coalesce follows a change that is about to be settled along with that of a, whose delivery has its span in
// ctx. The change's span and outputs belong to its own trace, or else to the delivery's; its span links to
// the delivery's. The caller calls settled once the change is settled.
func (c *Changes) coalesce(
	ctx context.Context, a answer, change events.Change, sibling stream.Sibling, outputs []stream.Output,
) (settled func()) {
	parent, span := trace.SpanFromContext(ctx), trace.Span(noop.Span{})
	carrier := propagation.MapCarrier(sibling.Message.Metadata)
	own := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
	if parent.SpanContext().IsValid() && own.IsValid() {
		ctx, span = parent.TracerProvider().Tracer(tracerName).Start(
			trace.ContextWithRemoteSpanContext(ctx, own), "coalesce "+a.delivery.Stream(),
			trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(trace.Link{SpanContext: parent.SpanContext()}))
		span.SetAttributes(semconv.MessagingMessageID(sibling.Entry), attrOutcome.String(outcomeCoalesced))
	}
	router.Inject(ctx, outputs)
	return func() {
		c.report(Event{Kind: Ended, Timeline: queued(change, sibling.Entry).ended(outcomeCoalesced, time.Now())})
		span.End()
	}
}
