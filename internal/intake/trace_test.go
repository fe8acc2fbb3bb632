package intake_test

import (
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/forge"
	"lockstep/internal/intake"
)

func TestSpooledDeliveryKeepsItsTrace(t *testing.T) {
	r := newRig(t, t.TempDir(), 1<<30)
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	sources, err := forge.LoadSources("", []string{"LOCKSTEP_HOOK_HUB_FORGE=github", "LOCKSTEP_HOOK_HUB_SECRET=a secret of sixteen bytes"})
	if err != nil {
		t.Fatal(err)
	}
	in, err := intake.New(intake.Config{Registry: r.registry, Sources: sources, Spool: r.spool, Tracer: tracer, RedisTimeout: time.Minute, SpoolTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	r.server.Stop()
	ctx, webhook := tracer.Start(t.Context(), "webhook")
	out, err := in.Take(ctx, forge.Source{Name: "hub"}, push(t, "d1", "acme/widgets"))
	webhook.End()
	if err != nil || out.Result != intake.Spooled {
		t.Fatalf("%+v, %v", out, err)
	}
	stop := r.run(in) // attempts while Redis is down have no spans
	r.server.Restart()
	r.awaitIDs(1)
	stop()
	spans := recorder.Ended()
	if len(spans) != 2 {
		t.Fatalf("%d spans, want the webhook's and one from disk", len(spans))
	}
	drained := spans[1]
	if drained.Name() != "webhook from disk" || drained.Parent().SpanID() != webhook.SpanContext().SpanID() {
		t.Errorf("%s has the parent %v, want the webhook's span %v", drained.Name(), drained.Parent(), webhook.SpanContext())
	}
	entries := r.client.XRevRange(t.Context(), events.DefaultNamespace.Changes(), "+", "-").Val()
	at := stream.Metadata(entries[0].Values).Get("traceparent")
	if want := "00-" + drained.SpanContext().TraceID().String() + "-" + drained.SpanContext().SpanID().String() + "-01"; at != want {
		t.Errorf("the change carries %q, want %q", at, want)
	}
}
