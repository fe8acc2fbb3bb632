package router_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/testenv"
	"lockstep/locking"
	"lockstep/router"
)

// TestPermanentErrorWithoutResultIsDeadLetter gives up a message on a route whose Disposer has no failed result for it.
func TestPermanentErrorWithoutResultIsDeadLetter(t *testing.T) {
	t.Parallel()
	permanent := events.Errorf(events.Permanent, events.ClassConfig, "cannot work")
	fail := func(*message.Message) ([]*message.Message, error) { return nil, permanent }
	malformed := func(*message.Message) ([]*message.Message, error) {
		return nil, events.Errorf(events.Malformed, events.ClassConfig, "cannot read")
	}
	nothing := func(*message.Message, error, int) stream.Settlement { return stream.Settlement{} }
	for name, tc := range map[string]struct {
		route router.Route
		dead  int64
	}{
		"of the handler, without Failed":         {router.Route{Handler: fail}, 1},
		"of the handler, Failed returns nothing": {router.Route{Handler: fail, Dispose: router.Disposer{Failed: nothing}}, 1},
		"malformed, without Failed":              {router.Route{Handler: malformed}, 1},
		"malformed, Failed returns nothing": {
			router.Route{Handler: malformed, Dispose: router.Disposer{Failed: nothing}}, 1,
		},
		"of the handler, Failed returns a result": {router.Route{Handler: fail, Dispose: router.Disposer{
			Failed: func(msg *message.Message, _ error, _ int) stream.Settlement {
				return stream.Settlement{Outputs: []stream.Output{{Stream: prefix + "results", Message: message.NewMessage("failed", msg.Payload)}}}
			},
		}}, 0},
		"of Before": {router.Route{Handler: fail, Before: []message.HandlerMiddleware{
			func(message.HandlerFunc) message.HandlerFunc { return fail },
		}}, 1},
		"of Request": {router.Route{Handler: fail, Request: func(*message.Message) ([]locking.Request, error) { return nil, permanent }}, 1},
		"a panic of Request, after the attempts": {router.Route{Handler: fail,
			Request: func(*message.Message) ([]locking.Request, error) { panic("oops") },
			Dispose: router.Disposer{Retry: router.Retry{MaxAttempts: 2, Base: time.Millisecond}}}, 1},
		"a panic after the attempts": {router.Route{Dispose: router.Disposer{Retry: router.Retry{MaxAttempts: 1}},
			Handler: func(*message.Message) ([]*message.Message, error) { panic("broken") }}, 1},
		"messages without a Publisher": {router.Route{Dispose: router.Disposer{Retry: router.Retry{MaxAttempts: 1}},
			Handler: func(msg *message.Message) ([]*message.Message, error) { return []*message.Message{msg}, nil }}, 1},
		"an unknown error after the attempts": {router.Route{Dispose: router.Disposer{Retry: router.Retry{MaxAttempts: 1}},
			Handler: func(*message.Message) ([]*message.Message, error) { return nil, errors.New("broken") }}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := startRedis(t)
			route := tc.route
			route.Name, route.Topic, route.Subscriber, route.Dispose.Log = "work", topic, newSubscriber(t, client), quiet()
			if route.Request != nil {
				route.Locker = newLocker(t, client, 0)
			}
			run(t, route)
			publishTo(t, newPublisher(t, client), topic, "m1", []byte("precious"))

			outcomes := func() int64 {
				return client.XLen(t.Context(), prefix+"dead").Val() + client.XLen(t.Context(), prefix+"results").Val()
			}
			stopWhen(t, func() bool { return outcomes() > 0 })

			if dead := testenv.Must(client.XLen(t.Context(), prefix+"dead").Result())(t); dead != tc.dead {
				t.Errorf("%d dead letters, want %d", dead, tc.dead)
			}
			if results := testenv.Must(client.XLen(t.Context(), prefix+"results").Result())(t); results != 1-tc.dead {
				t.Errorf("%d results, want %d", results, 1-tc.dead)
			}
		})
	}
}
