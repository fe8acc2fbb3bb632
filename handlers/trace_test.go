package handlers_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/changes"
	"lockstep/internal/testenv"
	"lockstep/locking"
	"lockstep/router"
)

const process = "process " + topic

// recording returns a tracer and its recorder.
func recording(t *testing.T) (trace.Tracer, *tracetest.SpanRecorder) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	return provider.Tracer("test"), recorder
}

// publishTraced adds a change with a trace, and returns the publisher's span.
func publishTraced(t *testing.T, client redis.UniversalClient, id string) trace.SpanContext {
	t.Helper()
	c, err := events.NewChange(events.Change{ID: id, URL: "https://example.com/acme/widgets.git", App: "docs"})
	if err != nil {
		t.Fatal(err)
	}
	msg := testenv.Must(changes.Message(c))(t)
	at := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, id[len(id)-1]}, SpanID: trace.SpanID{7}, TraceFlags: trace.FlagsSampled})
	msg.Metadata.Set("traceparent", "00-"+at.TraceID().String()+"-"+at.SpanID().String()+"-01")
	testenv.Must(newPublisher(t, client).Add(t.Context(), topic, msg))(t)
	return at
}

// ended waits for n spans with a name.
func ended(t *testing.T, recorder *tracetest.SpanRecorder, name string, n int) []sdktrace.ReadOnlySpan {
	t.Helper()
	var found []sdktrace.ReadOnlySpan
	stopWhen(t, func() bool {
		found = nil
		for _, span := range recorder.Ended() {
			if span.Name() == name {
				found = append(found, span)
			}
		}
		return len(found) >= n
	})
	return found
}

func attr(span sdktrace.ReadOnlySpan, key string) string {
	for _, a := range span.Attributes() {
		if a.Key == attribute.Key(key) {
			return a.Value.String()
		}
	}
	return ""
}

// traceOf returns the trace context in an entry's metadata.
func traceOf(entry redis.XMessage) string { return stream.Metadata(entry.Values).Get("traceparent") }

func parentOf(span sdktrace.ReadOnlySpan) string {
	return "00-" + span.SpanContext().TraceID().String() + "-" + span.SpanContext().SpanID().String() + "-01"
}

func TestSpanStatusIsErrorForFailureNotForContention(t *testing.T) {
	t.Parallel()
	client := startRedis(t)
	tracer, recorder := recording(t)
	publishTraced(t, client, "c1")
	held := newLocker(t, client, time.Minute)
	leases := testenv.Must(held.AcquireAll(t.Context(), locking.Request{Key: "acme/widgets", Job: "other"}))(t)
	changes := &handlers.Changes{Namespace: events.DefaultNamespace, Log: quiet(), Handler: func(_ context.Context, job handlers.Job) (handlers.Outcome, error) {
		job.Progress(events.Progress{Phase: events.PhaseFetch})
		return handlers.Outcome{}, errors.New("a hiccup")
	}}
	run(t, router.Route{Name: "changes", Topic: topic, Subscriber: newSubscriber(t, client), Handler: changes.Handle, Tracer: tracer,
		Locker: newLocker(t, client, 50*time.Millisecond), Request: changes.Request,
		Dispose: changes.Dispose(router.Retry{MaxAttempts: 2, Base: time.Millisecond})})
	var waited sdktrace.ReadOnlySpan
	stopWhen(t, func() bool { // Redis may be slow once
		for _, span := range ended(t, recorder, process, 1) {
			if attr(span, "error.type") == string(events.ClassBusy) {
				waited = span
			}
		}
		return waited != nil
	})
	if waited.Status().Code != codes.Unset || attr(waited, "lockstep.end") != "deferred" {
		t.Errorf("lock timeout: %v %v", waited.Status(), waited.Attributes())
	}
	must(t, leases.Release(context.Background()))
	var ends []string
	stopWhen(t, func() bool {
		ends = nil
		for _, span := range ended(t, recorder, process, 1) {
			if span.Status().Code == codes.Error && span.Status().Description == "a hiccup" {
				ends = append(ends, attr(span, "lockstep.end"))
			}
		}
		return len(ends) == 2
	})
	slices.Sort(ends) // the span of an attempt ends after its entry is settled, so that of the second may be the first to end
	if want := []string{"dead", "nacked"}; !slices.Equal(ends, want) {
		t.Errorf("failed attempts ended %q, want %q", ends, want)
	}
	if fetch := ended(t, recorder, "fetch", 2)[0]; fetch.Status().Code != codes.Error {
		t.Errorf("the phase that failed has status %v", fetch.Status())
	}
}

func TestCoalescedChangeKeepsItsTraceWithALink(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), startRedis(t)
	tracer, recorder := recording(t)
	own := map[string]trace.TraceID{}
	for _, id := range []string{"c1", "c2", "c3", "c4", "c5", "c6"} {
		own[id] = publishTraced(t, client, id).TraceID()
	}
	route := coalescing(t, client, 5, func(_ context.Context, job handlers.Job) (handlers.Outcome, error) {
		return handlers.Outcome{Result: job.Result(events.ResultSynced), Covers: func(_ context.Context, other handlers.Job) (handlers.Outcome, bool) {
			return handlers.Outcome{Result: other.Result(events.ResultSynced)}, true
		}}, nil
	})
	route.Tracer = tracer
	run(t, route)
	along := ended(t, recorder, "coalesce "+topic, 5)
	stopWhen(t, func() bool { return client.XPending(ctx, topic, "workers").Val().Count == 0 })
	var answer sdktrace.ReadOnlySpan
	stopWhen(t, func() bool { // one span counts five others; it ends after they are settled
		for _, span := range ended(t, recorder, process, 1) {
			if attr(span, "lockstep.coalesced") == "5" {
				answer = span
			}
		}
		return answer != nil
	})
	carried := map[string]bool{}
	for _, span := range along {
		if len(span.Links()) != 1 || span.Links()[0].SpanContext.SpanID() != answer.SpanContext().SpanID() {
			t.Errorf("links %v, want one to the span of the settled change", span.Links())
		}
		carried[parentOf(span)] = true
	}
	carried[parentOf(answer)] = true
	for _, entry := range client.XRange(ctx, events.DefaultNamespace.Results(), "-", "+").Val() {
		payload, _ := entry.Values["payload"].(string)
		result := testenv.Must(events.ParseResult([]byte(payload)))(t)
		at, id := traceOf(entry), result.Deliveries[0]
		if !carried[at] || at[3:35] != own[id].String() {
			t.Errorf("the result of %s carries %q, want a span of its own trace %s", id, at, own[id])
		}
		delete(own, id)
	}
	if len(own) != 0 {
		t.Errorf("no results for %v", own)
	}
}
