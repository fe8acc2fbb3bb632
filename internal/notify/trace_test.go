package notify

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"lockstep/events/stream"
	"lockstep/internal/changes"
)

const (
	resultsTrace  = "0af7651916cd43dd8448eb211c80319c"
	resultsParent = "00-" + resultsTrace + "-b7ad6b7169203331-01"
)

// publishTraced publishes a result with a trace context.
func (w *world) publishTraced(id string) {
	w.t.Helper()
	msg := must(changes.ResultMessage(synced(w.t, id, "docs", "acme/a")))(w.t)
	msg.Metadata.Set("traceparent", resultsParent)
	publisher := must(stream.NewPublisher(stream.PublisherConfig{Client: w.redis}, nil))(w.t)
	must(0, publisher.Publish(namespace.Results(), msg))(w.t)
}

func TestAttemptsAreSpansOfTheResultsTrace(t *testing.T) {
	w := newWorld(t)
	var up atomic.Bool
	apps := newReceiver(t, func(http.ResponseWriter, post) int {
		if up.Load() {
			return http.StatusOK
		}
		return http.StatusBadRequest
	})
	w.signsFor(apps.URL)
	w.watch("docs", apps.URL+"/docs?key=hunter2", "acme/a")
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	w.run(soon(2), func(c *Config) { c.Tracer = tracer })
	w.publishTraced("r1")
	w.await(OutcomeGivenUp, 1)
	up.Store(true)
	if _, _, err := w.dead().Retry(t.Context(), w.letters()[0].ID); err != nil {
		t.Fatal(err)
	}
	w.await(OutcomeDelivered, 1)
	posts, spans := apps.await(atLeast(3)), recorder.Ended()
	if len(spans) != 3 {
		t.Fatalf("%d spans, want one for each of 3 attempts", len(spans))
	}
	for i, span := range spans {
		if at := span.Parent(); at.TraceID().String() != resultsTrace || at.SpanID().String() != resultsParent[36:52] {
			t.Errorf("attempt %d has the parent %v, want the result's span", i+1, at)
		}
		if got, want := posts[i].header.Get("traceparent"), "00-"+resultsTrace+"-"+span.SpanContext().SpanID().String()+"-01"; got != want {
			t.Errorf("attempt %d sent %q, want %q", i+1, got, want)
		}
		if failed := span.Status().Code == codes.Error; failed != (i < 2) {
			t.Errorf("attempt %d has status %v", i+1, span.Status())
		}
		for _, a := range span.Attributes() {
			if strings.Contains(a.Value.String(), "hunter2") {
				t.Errorf("attempt %d has %s", i+1, a.Value.String())
			}
		}
	}
}
