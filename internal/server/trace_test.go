package server_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/forge"
	"lockstep/internal/intake"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
)

const (
	callersTrace  = "0af7651916cd43dd8448eb211c80319c"
	callersParent = "00-" + callersTrace + "-b7ad6b7169203331-01"
)

func recordSpans(sampler sdktrace.Sampler) (trace.Tracer, *tracetest.SpanRecorder) {
	recorder := tracetest.NewSpanRecorder()
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder), sdktrace.WithSampler(sampler)).Tracer("test"), recorder
}

// onlyCallers samples only spans whose parent is sampled, which shows whose trace headers are used.
var onlyCallers = sdktrace.ParentBased(sdktrace.NeverSample())

func TestTraceParentIsUsedOnlyWithToken(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t)
	cfg := tracked(t, redisServer)
	tracer, recorder := recordSpans(onlyCallers)
	cfg.Tracer, cfg.Token = tracer, fixed("t0ken")
	srv := httptest.NewServer(documented(t, cfg))
	defer srv.Close()
	if status, _ := do(t, "POST", srv.URL+"/api/v1/changes", plain, http.Header{"Traceparent": {callersParent}}); status != http.StatusUnauthorized {
		t.Errorf("status %d without the token", status)
	}
	if n := len(recorder.Ended()); n != 0 {
		t.Fatalf("%d spans were recorded without the token", n)
	}
	if status, text := do(t, "POST", srv.URL+"/api/v1/changes", plain, http.Header{"Traceparent": {callersParent}, "Authorization": {"Bearer t0ken"}}); status != http.StatusAccepted {
		t.Fatalf("%d %s", status, text)
	}
	srv.Close() // waits for the handler
	spans := recorder.Ended()
	if len(spans) != 1 || spans[0].SpanContext().TraceID().String() != callersTrace || spans[0].Name() != "POST /api/v1/changes" {
		t.Fatalf("spans %v, want one of the caller's trace", spans)
	}
	entry := redisServer.Client().XRange(t.Context(), events.DefaultNamespace.Changes(), "-", "+").Val()[0]
	if got, want := stream.Metadata(entry.Values).Get("traceparent"), "00-"+callersTrace+"-"+spans[0].SpanContext().SpanID().String()+"-01"; got != want {
		t.Errorf("the change carries %q, want %q", got, want)
	}
}

// spanIntake is an Intake that sends the span context of each delivery.
type spanIntake struct{ spans chan trace.SpanContext }

func (s spanIntake) Take(ctx context.Context, _ forge.Source, d forge.Delivery) (intake.Outcome, error) {
	s.spans <- trace.SpanContextFromContext(ctx)
	return intake.Outcome{Result: intake.Accepted, Delivery: d.ID, Changes: 1}, nil
}

func TestWebhookSenderCannotCauseTraces(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		sampler sdktrace.Sampler
		want    int
	}{
		"callers' spans only": {onlyCallers, 0},
		"all spans":           {sdktrace.AlwaysSample(), 1}, // only of the authenticated delivery
	} {
		t.Run(name, func(t *testing.T) {
			tracer, recorder := recordSpans(tc.sampler)
			in := spanIntake{make(chan trace.SpanContext, 10)}
			srv := httptest.NewServer(documented(t, server.Config{
				Hooks: &server.Hooks{Sources: hubSources(t), Intake: in}, Tracer: tracer, Metrics: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler),
			}))
			defer srv.Close()
			header := hubHeader(pushOfWidgets, "push", "d1")
			header.Set("Traceparent", callersParent)
			if status, text := do(t, "POST", srv.URL+"/hooks/hub", pushOfWidgets, header); status != http.StatusAccepted {
				t.Fatalf("%d %s", status, text)
			}
			if span := <-in.spans; !span.IsValid() || span.TraceID().String() == callersTrace {
				t.Errorf("the delivery's span is %v, want a new trace", span)
			}
			header.Del("X-Hub-Signature-256")
			if status, _ := do(t, "POST", srv.URL+"/hooks/hub", pushOfWidgets, header); status != http.StatusUnauthorized {
				t.Errorf("status %d without a signature", status)
			}
			srv.Close() // waits for both handlers
			if n := len(recorder.Ended()); n != tc.want {
				t.Errorf("%d spans were recorded, want %d", n, tc.want)
			}
		})
	}
}
