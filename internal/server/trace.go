package server

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
	"lockstep/internal/forge"
	"lockstep/internal/intake"
)

// traced starts a span for each request, as a child of the trace in its headers. Use it inside guarded, so that only
// authenticated clients can cause spans.
func traced(cfg Config, next http.Handler) http.Handler {
	if cfg.Tracer == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := cfg.Tracer.Start(ctx, r.Pattern, spanOptions(r)...)
		defer span.End()
		answer := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answer, r.WithContext(ctx))
		setStatus(span, answer.status)
	})
}

// spanOptions returns the span's kind and its route attributes, from the matched pattern.
func spanOptions(r *http.Request) []trace.SpanStartOption {
	method, route, _ := strings.Cut(r.Pattern, " ")
	return []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(route))}
}

func setStatus(span trace.Span, status int) {
	span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, http.StatusText(status))
	}
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap supports [http.ResponseController].
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func describeChange(ctx context.Context, change events.Change) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String("lockstep.repo", change.Repo.String()),
			attribute.String("lockstep.job", change.ID))
	}
}

// trace starts the span of an authenticated delivery at its arrival time. It ignores trace headers, because
// the signature does not cover them.
func (h *hook) trace(tracer trace.Tracer, start time.Time, d forge.Delivery) trace.Span {
	if tracer == nil {
		return trace.SpanFromContext(context.Background())
	}
	ctx, span := tracer.Start(h.r.Context(), h.r.Pattern, append(spanOptions(h.r), trace.WithTimestamp(start))...)
	span.SetAttributes(attribute.String("lockstep.source", h.src.Name), attribute.String("lockstep.event", d.Event),
		attribute.String("lockstep.delivery", d.ID), attribute.String("lockstep.repo", intake.Repo(d)))
	h.r = h.r.WithContext(ctx)
	return span
}
