package intake

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// resume begins the span of a delivery that leaves the spool, in the trace of its arrival. The returned function ends it.
// Spans of attempts that fail because Redis is unreachable are dropped, as there may be many.
func (in *Intake) resume(ctx context.Context, s spooled) (_ context.Context, end func(error)) {
	if in.cfg.Tracer == nil {
		return ctx, func(error) {}
	}
	ctx = propagation.TraceContext{}.Extract(ctx, s.Trace)
	ctx, span := in.cfg.Tracer.Start(ctx, "webhook from disk", trace.WithSpanKind(trace.SpanKindProducer), trace.WithTimestamp(s.At))
	span.SetAttributes(attribute.String("lockstep.source", s.Delivery.Source), attribute.String("lockstep.delivery", s.Delivery.ID),
		attribute.String("lockstep.repo", Repo(s.Delivery).String()))
	return ctx, func(err error) {
		switch {
		case err != nil && isUnavailable(err):
			return
		case err != nil:
			span.SetStatus(codes.Error, "refused")
		}
		span.End()
	}
}
