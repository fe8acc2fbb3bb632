package router_test

import (
	"context"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/router"
	"lockstep/router/observe"
)

func TestOnGiveUpIsCalledOnlyAfterSettling(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		stolen bool
		want   []string
	}{
		"settled here": {false, []string{"sync failed not_found"}},
		"taken over":   {true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, client := context.Background(), startRedis(t)
			var ended []string
			changes := router.Changes{
				Namespace: events.DefaultNamespace, Log: quiet(),
			}
			observer := &observe.Observer{Events: func(e observe.Event) {
				ended = append(ended, e.Timeline.Operation+" "+e.Timeline.Outcome+" "+string(e.Class))
			}}
			dispose := router.Disposer{Failed: changes.Failed, OnGiveUp: changes.OnGiveUp, Log: quiet()}.Middleware
			messages, err := newSubscriber(t, client).Subscribe(ctx, topic)
			if err != nil {
				t.Fatal(err)
			}
			publishChange(t, client, events.Change{ID: "c1"})
			msg := within(t, messages, "message")
			defer msg.Ack()
			delivery, _ := stream.DeliveryOf(msg)
			_, err = router.Observe(observer, topic)(dispose(func(*message.Message) ([]*message.Message, error) {
				if tc.stolen {
					client.Do(ctx, "XCLAIM", topic, "workers", "another", 0, delivery.Entry())
				}
				return nil, events.Errorf(events.Permanent, events.ClassNotFound, "no such repository")
			}))(msg)
			if err != nil || !slices.Equal(ended, tc.want) {
				t.Errorf("ended %q, error %v; want %q", ended, err, tc.want)
			}
		})
	}
}
