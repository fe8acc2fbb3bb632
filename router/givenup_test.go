package router_test

import (
	"context"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/router"
)

// TestAChangeIsCountedAsFailedByWhoHasSettledThat alone: another may have it meanwhile, and will.
func TestAChangeIsCountedAsFailedByWhoHasSettledThat(t *testing.T) {
	for name, tc := range map[string]struct {
		stolen bool
		want   []string
	}{
		"settled here":     {false, []string{"failed not_found", "sync failed"}},
		"in others' hands": {true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, client := context.Background(), startRedis(t)
			var told []string
			changes := router.Changes{
				Namespace: events.DefaultNamespace, Log: quiet(),
				Observe: func(outcome, class string) { told = append(told, outcome+" "+class) },
				Timed:   func(tl router.Timeline) { told = append(told, tl.Operation+" "+tl.Outcome) },
			}
			dispose := router.Disposer{Failed: changes.Failed, GivenUp: changes.GivenUp, Log: quiet()}.Middleware
			messages, err := newSubscriber(t, client).Subscribe(ctx, topic)
			if err != nil {
				t.Fatal(err)
			}
			publishChange(t, client, events.Change{ID: "c1"})
			msg := within(t, messages, "message")
			defer msg.Ack()
			delivery, _ := stream.DeliveryOf(msg)
			_, err = dispose(func(*message.Message) ([]*message.Message, error) {
				if tc.stolen {
					client.Do(ctx, "XCLAIM", topic, "workers", "another", 0, delivery.Entry())
				}
				return nil, events.Errorf(events.Permanent, events.ClassNotFound, "no such repository")
			})(msg)
			if err != nil || !slices.Equal(told, tc.want) {
				t.Errorf("told %q, error %v; want %q", told, err, tc.want)
			}
		})
	}
}
