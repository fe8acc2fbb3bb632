package intake

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// resume begins a span of a delivery that leaves the spool, in the trace that it was part of when it came. end ends
// it; of a try that Redis' absence ended nothing is told, for there will be many.
func (in *Intake) resume(ctx context.Context, k kept) (_ context.Context, end func(error)) {
	if in.cfg.Tracer == nil {
		return ctx, func(error) {}
	}
	ctx = propagation.TraceContext{}.Extract(ctx, k.Trace)
	ctx, span := in.cfg.Tracer.Start(ctx, "webhook from disk", trace.WithSpanKind(trace.SpanKindProducer), trace.WithTimestamp(k.At))
	span.SetAttributes(attribute.String("lockstep.source", k.Delivery.Source), attribute.String("lockstep.delivery", k.Delivery.ID),
		attribute.String("lockstep.repo", Repo(k.Delivery).String()))
	return ctx, func(err error) {
		switch {
		case err != nil && isAway(err):
			return
		case err != nil:
			span.SetStatus(codes.Error, "refused")
		}
		span.End()
	}
}
