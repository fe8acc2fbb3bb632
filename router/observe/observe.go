// Package observe follows a message through the router. The router reports each step once, to a [Delivery] or, while the
// handler works, to an [Attempt]. Metrics, spans, timelines and progress derive from these reports:
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
// Events feed the metrics, the list of work in progress and progress bars.
package observe

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"lockstep/events"
	"lockstep/events/stream"
)

// Observer observes the messages of one or several routes. A nil *Observer disables observation.
type Observer struct {
	// Tracer creates a span for each delivery, as a child of the span in the message's metadata (W3C Trace Context).
	// Messages that result from the delivery continue the trace. Nil disables tracing: no trace is read or written.
	Tracer trace.Tracer

	// Events is called with each [Event], from many goroutines. It must not block. Nil disables it.
	Events func(Event)
}

// Event is a step in the processing of a change.
type Event struct {
	Kind Kind
	Job  *events.Job // the same pointer in all events of one attempt; nil in Ended

	Progress events.Progress // in Progressed

	// In Attempted.
	Took     time.Duration // from the lease to the settlement
	Received int64         // bytes of packs from the remote
	Err      error         // nil if the change is settled

	// In Ended.
	Timeline Timeline                  // with the outcome
	Class    events.Class              // of the error, "" for none
	Missing  []events.MissingSubmodule // that the published tree lacks
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
	Coalesced = "coalesced" // settled along with another change
	Failed    = "failed"
	Forwarded = "forwarded" // handed over to another deployment
)

// Delivery follows one delivery of a message.
type Delivery struct {
	events   func(Event)
	delivery *stream.Delivery // nil for a message of another Pub/Sub
	ctx      context.Context
	span     trace.Span // in ctx
	leased   time.Time  // zero until then
}

// Start follows a delivery of msg. The caller sets msg's context to the Delivery's Context, and calls End.
func (o *Observer) Start(msg *message.Message, topic string) *Delivery {
	d := &Delivery{events: func(Event) {}, ctx: msg.Context(), span: noop.Span{}}
	d.delivery, _ = stream.DeliveryOf(msg)
	if o != nil && o.Events != nil {
		d.events = o.Events
	}
	if o != nil && o.Tracer != nil {
		d.startSpan(o.Tracer, msg, topic)
	}
	return d
}

// Context is the message's context with the delivery's span.
func (d *Delivery) Context() context.Context { return d.ctx }

// Ended reports the outcome of a change that this delivery settled without an attempt.
func (d *Delivery) Ended(change events.Change, outcome string, class events.Class) {
	d.ended(d.timeline(change).ended(outcome, time.Now()), class, nil)
}

// Forwarded reports a change that was handed over to another deployment.
func (d *Delivery) Forwarded() {
	d.ended(Timeline{Outcome: Forwarded}, "", nil)
}

func (d *Delivery) ended(t Timeline, class events.Class, missing []events.MissingSubmodule) {
	d.span.SetAttributes(attrOutcome.String(t.Outcome))
	d.events(Event{Kind: Ended, Timeline: t, Class: class, Missing: missing})
}

// timeline is the change's timeline up to the delivery.
func (d *Delivery) timeline(change events.Change) Timeline {
	if d.delivery == nil {
		return queued(change, "")
	}
	t := queued(change, d.delivery.Entry())
	t.Delivered, t.Again = d.delivery.Began(), d.delivery.Delivered() > 1
	return t
}
