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

// traced makes a span of each request to what asks for changes. It belongs inside the guard: whoever is let through may
// say which trace the request is part of, and that it is to be recorded; who is not costs no span.
func traced(tracer trace.Tracer, next http.Handler) http.Handler {
	if tracer == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := tracer.Start(ctx, r.Pattern, ofRequest(r)...)
		defer span.End()
		answer := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answer, r.WithContext(ctx))
		answered(span, answer.status)
	})
}

// ofRequest says which route a request has taken, by the pattern that it was matched by.
func ofRequest(r *http.Request) []trace.SpanStartOption {
	method, route, _ := strings.Cut(r.Pattern, " ")
	return []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(route))}
}

func answered(span trace.Span, status int) {
	span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, http.StatusText(status))
	}
}

// statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// describeChange tells the span that ctx has which change was asked for.
func describeChange(ctx context.Context, change events.Change) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String("lockstep.repo", change.Repo.String()), attribute.String("lockstep.job", change.ID))
	}
}

// trace begins the span of a delivery that is proved to come from its forge, from when it came. What its headers say of
// a trace is ignored: they are not signed, and whoever has seen a delivery could have anything recorded.
func (h *hook) trace(tracer trace.Tracer, began time.Time, d forge.Delivery) trace.Span {
	if tracer == nil {
		return trace.SpanFromContext(context.Background())
	}
	ctx, span := tracer.Start(h.r.Context(), h.r.Pattern, append(ofRequest(h.r), trace.WithTimestamp(began))...)
	span.SetAttributes(attribute.String("lockstep.source", h.src.Name), attribute.String("lockstep.event", d.Event),
		attribute.String("lockstep.delivery", d.ID), attribute.String("lockstep.repo", intake.Repo(d).String()))
	h.r = h.r.WithContext(ctx)
	return span
}
