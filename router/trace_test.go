package router_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"lockstep/events/stream"
	"lockstep/router"
)

func TestPlainEntryJoinsTrace(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), startRedis(t)
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	const at = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if err := client.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []string{"url", "https://example.com/acme/widgets.git", "traceparent", at}}).Err(); err != nil {
		t.Fatal(err)
	}
	run(t, router.Route{Name: "changes", Topic: topic, Subscriber: newSubscriber(t, client), Tracer: provider.Tracer("test"),
		Handler: func(msg *message.Message) ([]*message.Message, error) { return router.Commit(msg, stream.Settlement{}) }})
	var ended []sdktrace.ReadOnlySpan
	stopWhen(t, func() bool {
		ended = recorder.Ended()
		return len(ended) == 2
	})
	if ended[0].Name() != "settle" || ended[0].Parent().SpanID() != ended[1].SpanContext().SpanID() {
		t.Errorf("span %s has the parent %v, want settle in %v", ended[0].Name(), ended[0].Parent(), ended[1].SpanContext())
	}
	if span := ended[1]; span.Parent().TraceID().String() != at[3:35] || span.Parent().SpanID().String() != at[36:52] {
		t.Errorf("the parent is %v, want %s", span.Parent(), at)
	}
}
