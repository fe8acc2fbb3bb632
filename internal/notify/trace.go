package notify

import (
	"context"
	"net/http"
	"strconv"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events/stream"
)

// traceContext is the W3C Trace Context of a notification, stored with its item.
type traceContext struct {
	Parent string `json:"traceparent,omitempty"`
	State  string `json:"tracestate,omitempty"`
}

var propagator propagation.TraceContext

// traceOf returns the trace context of a result, if there is a Tracer.
func (n *Notifier) traceOf(entry redis.XMessage) traceContext {
	if n.cfg.Tracer == nil {
		return traceContext{}
	}
	from := stream.Metadata(entry.Values)
	return traceContext{from["traceparent"], from["tracestate"]}
}

// trace begins the span of one attempt. The returned function records the outcome and ends the span.
func (n *Notifier) trace(ctx context.Context, c claim) (_ context.Context, end func(outcome string, err error)) {
	if n.cfg.Tracer == nil {
		return ctx, func(string, error) {}
	}
	i := c.item
	ctx = propagator.Extract(ctx, propagation.MapCarrier{"traceparent": i.Parent, "tracestate": i.State})
	name, kind := "POST notification", trace.SpanKindClient
	_, runs := n.cfg.Commands[c.app]
	if runs {
		name, kind = "run command", trace.SpanKindInternal
	}
	ctx, span := n.cfg.Tracer.Start(ctx, name, trace.WithSpanKind(kind))
	span.SetAttributes(attribute.String("lockstep.notification", i.ID),
		attribute.String("lockstep.app", c.app), attribute.String("lockstep.repo", i.Repo.String()))
	if !runs {
		span.SetAttributes(semconv.HTTPRequestMethodPost)
	}
	if c.failed > 0 {
		span.SetAttributes(semconv.HTTPRequestResendCount(c.failed))
	}
	return ctx, func(outcome string, err error) {
		span.SetAttributes(attribute.String("lockstep.outcome", outcome))
		if err != nil && outcome != "" {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// traced propagates the trace of its context to a request. It records only the host of the URL.
func (n *Notifier) traced(req *http.Request) trace.Span {
	span := trace.SpanFromContext(req.Context())
	if span.IsRecording() {
		span.SetAttributes(semconv.ServerAddress(req.URL.Hostname()))
		if port, err := strconv.Atoi(req.URL.Port()); err == nil {
			span.SetAttributes(semconv.ServerPort(port))
		}
	}
	propagator.Inject(req.Context(), propagation.HeaderCarrier(req.Header))
	return span
}
