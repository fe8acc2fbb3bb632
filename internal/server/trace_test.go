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

// asCallersSay records what its caller has recorded, and nothing else: who can make it record is seen by that.
var asCallersSay = sdktrace.ParentBased(sdktrace.NeverSample())

func TestWhoHasTheTokenMaySayWhichTraceAChangeIsPartOf(t *testing.T) {
	redisServer := redistest.Start(t)
	cfg := tracked(t, redisServer)
	tracer, recorder := recordSpans(asCallersSay)
	cfg.Tracer, cfg.Token = tracer, "t0ken"
	srv := httptest.NewServer(documented(t, cfg))
	defer srv.Close()
	if status, _ := do(t, "POST", srv.URL+"/api/v1/changes", plain, http.Header{"Traceparent": {callersParent}}); status != http.StatusUnauthorized {
		t.Errorf("status %d without the token", status)
	}
	if n := len(recorder.Ended()); n != 0 {
		t.Fatalf("%d spans were recorded for somebody without the token", n)
	}
	if status, text := do(t, "POST", srv.URL+"/api/v1/changes", plain, http.Header{"Traceparent": {callersParent}, "Authorization": {"Bearer t0ken"}}); status != http.StatusAccepted {
		t.Fatalf("%d %s", status, text)
	}
	srv.Close() // and the handler has returned
	spans := recorder.Ended()
	if len(spans) != 1 || spans[0].SpanContext().TraceID().String() != callersTrace || spans[0].Name() != "POST /api/v1/changes" {
		t.Fatalf("spans %v, want one of the caller's trace", spans)
	}
	entry := redisServer.Client().XRange(t.Context(), events.DefaultNamespace.Changes(), "-", "+").Val()[0]
	if got, want := stream.Metadata(entry.Values).Get("traceparent"), "00-"+callersTrace+"-"+spans[0].SpanContext().SpanID().String()+"-01"; got != want {
		t.Errorf("the change carries %q, want %q", got, want)
	}
}

// watching is a Taker that looks at the span of what it takes.
type watching struct{ saw chan trace.SpanContext }

func (w watching) Take(ctx context.Context, _ forge.Source, d forge.Delivery) (intake.Outcome, error) {
	w.saw <- trace.SpanContextFromContext(ctx)
	return intake.Outcome{Result: intake.Accepted, Delivery: d.ID, Changes: 1}, nil
}

func TestAWebhooksSenderHasNothingRecorded(t *testing.T) {
	for name, tc := range map[string]struct {
		sampler sdktrace.Sampler
		want    int
	}{
		"as callers say":   {asCallersSay, 0},
		"all that is ours": {sdktrace.AlwaysSample(), 1}, // the delivery that is proved, and not the one that is not
	} {
		t.Run(name, func(t *testing.T) {
			tracer, recorder := recordSpans(tc.sampler)
			taker := watching{make(chan trace.SpanContext, 10)}
			srv := httptest.NewServer(documented(t, server.Config{
				Hooks: &server.Hooks{Sources: hubSources(t), Intake: taker}, Tracer: tracer, Metrics: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler),
			}))
			defer srv.Close()
			header := hubHeader(pushOfWidgets, "push", "d1")
			header.Set("Traceparent", callersParent)
			if status, text := do(t, "POST", srv.URL+"/hooks/hub", pushOfWidgets, header); status != http.StatusAccepted {
				t.Fatalf("%d %s", status, text)
			}
			if saw := <-taker.saw; !saw.IsValid() || saw.TraceID().String() == callersTrace {
				t.Errorf("the delivery is part of %v, want a trace of its own", saw)
			}
			header.Del("X-Hub-Signature-256")
			if status, _ := do(t, "POST", srv.URL+"/hooks/hub", pushOfWidgets, header); status != http.StatusUnauthorized {
				t.Errorf("status %d without a signature", status)
			}
			srv.Close() // and both handlers have returned
			if n := len(recorder.Ended()); n != tc.want {
				t.Errorf("%d spans were recorded, want %d", n, tc.want)
			}
		})
	}
}
