package router_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/logtest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/router"
)

func stopWhen(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within a minute")
		}
	}
}

func TestDispositionSurvivesRedisError(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err     error
		attempt int
	}{
		"contention":               {events.Errorf(events.Contention, events.ClassBusy, "later"), 1},
		"this process is stopping": {&events.Error{Disposition: events.Contention, RetryAfter: events.AtOnce, Err: errors.New("stopping")}, 1},
		"retryable":                {errors.New("a hiccup"), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			client := server.Client()
			refuse := &refuser{}
			own := server.Client()
			own.AddHook(refuse)
			second := newSignal(1)
			var attempts []int
			slow := func(c *stream.SubscriberConfig) { // the subscriber alone would redeliver only after the test
				c.NackResendSleep = time.Hour
			}
			run(t, router.Route{Name: "changes", Topic: topic, Subscriber: newSubscriber(t, own, slow),
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					delivery, _ := stream.DeliveryOf(msg)
					if attempts = append(attempts, delivery.Attempt()); len(attempts) > 1 {
						second.one()
						return nil, nil
					}
					refuse.next.Store(true)
					return nil, tc.err
				},
				Dispose: router.Disposer{Log: quiet(), Retry: router.Retry{Base: time.Millisecond}}})
			publishTo(t, newPublisher(t, client), topic, "m1", nil)
			testenv.Receive(t, second.all, "second delivery, by the router's delay")
			if attempts[1] != tc.attempt {
				t.Errorf("attempt %d; want %d", attempts[1], tc.attempt)
			}
		})
	}
}

// refuser makes the next script that returns an entry fail.
type refuser struct{ next atomic.Bool }

func (r *refuser) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *refuser) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (r *refuser) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args() // evalsha, script, 5, its keys, group, consumer, "(parked)", an id, …
		if len(args) == 16 && args[10] == "(parked)" && r.next.CompareAndSwap(true, false) {
			cmd.SetErr(refusal{})
			return refusal{}
		}
		return next(ctx, cmd)
	}
}

type refusal struct{}

func (refusal) Error() string { return "NOPERM for once" }

func (refusal) RedisError() {}

// TestMessageThatWaitsForAMoment covers the log, and the span, which ends before the nack is written.
func TestMessageThatWaitsForAMoment(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), startRedis(t)
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	var log logtest.Buffer
	const deliveries = 3
	done := newSignal(deliveries)
	run(t, router.Route{Name: "r", Topic: topic, Subscriber: newSubscriber(t, client), Tracer: tracer,
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			defer done.one()
			if delivery, _ := stream.DeliveryOf(msg); delivery.Delivered() == deliveries {
				return router.Commit(msg, stream.Settlement{})
			}
			return nil, &events.Error{Disposition: events.Contention, RetryAfter: time.Millisecond, Err: errors.New("limited")}
		},
		Dispose: router.Disposer{Log: slog.New(slog.NewTextHandler(&log, nil))}})
	publishTo(t, newPublisher(t, client), topic, "m1", nil)
	testenv.Receive(t, done.all, "last delivery")
	stopWhen(t, func() bool { return client.XPending(ctx, topic, "workers").Val().Count == 0 })
	if n := strings.Count(log.String(), "will retry"); n != 1 {
		t.Errorf("%d lines at level info, want one for the first delivery: %s", n, log.String())
	}
	ends := func() (ends []string) {
		for _, span := range recorder.Ended() {
			for _, a := range span.Attributes() {
				if a.Key == "lockstep.end" {
					ends = append(ends, a.Value.AsString())
				}
			}
		}
		return ends
	}
	stopWhen(t, func() bool { return len(ends()) == deliveries })
	if want := []string{stream.Deferred, stream.Deferred, stream.Settled}; !slices.Equal(ends(), want) {
		t.Errorf("deliveries ended %q, want %q", ends(), want)
	}
}

func TestMessageTakenOverIsNotAnError(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), startRedis(t)
	dispose := router.Disposer{Log: quiet()}.Middleware
	for name, cause := range map[string]error{
		"permanent": events.Errorf(events.Permanent, events.ClassNotFound, "no such repository"),
		"retryable": errors.New("a hiccup"),
		"not owner": stream.ErrNotOwner,
	} {
		t.Run(name, func(t *testing.T) {
			messages, err := newSubscriber(t, client).Subscribe(ctx, topic)
			if err != nil {
				t.Fatal(err)
			}
			publishTo(t, newPublisher(t, client), topic, "m1", nil)
			msg := testenv.Receive(t, messages, "message")
			defer msg.Ack()
			delivery, _ := stream.DeliveryOf(msg)
			client.Do(ctx, "XCLAIM", topic, "workers", "another", 0, delivery.Entry())
			_, err = dispose(func(*message.Message) ([]*message.Message, error) { return nil, cause })(msg)
			if err != nil {
				t.Error(err)
			}
			client.XAck(ctx, topic, "workers", delivery.Entry())
		})
	}
}
