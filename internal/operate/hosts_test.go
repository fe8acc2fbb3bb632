package operate_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func TestLiftedBlockIsUsedAtOnce(t *testing.T) {
	t.Parallel()
	ctx, server := t.Context(), redistest.Start(t)
	client, names := server.Client(), events.DefaultNamespace

	limiter := testenv.Must(hosts.New(hosts.Config{Redis: client, Prefix: string(names)}))(t)
	requests := limiter.Job("acme/widgets", false)
	done := testenv.Must(requests.With("").Acquire(ctx, "git.example.com"))(t)
	done(wire.Answer{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"3600"}}, Err: errors.New("429")})
	requests.Leave(ctx)

	subscriber := testenv.Must(stream.NewSubscriber(stream.SubscriberConfig{
		Client: client, ConsumerGroup: events.WorkersGroup, Key: func(*message.Message) string { return "acme/widgets" },
	}, nil))(t)
	t.Cleanup(func() { _ = subscriber.Close() })
	publisher := testenv.Must(stream.NewPublisher(stream.PublisherConfig{Client: client}, nil))(t)
	testenv.Must(0, publisher.Publish(names.Changes(), message.NewMessage("c1", nil)))(t)
	messages := testenv.Must(subscriber.Subscribe(ctx, names.Changes()))(t)
	waiting := <-messages
	delivery, _ := stream.DeliveryOf(waiting)
	testenv.Must(0, delivery.Nack(ctx, time.Hour, false))(t)
	waiting.Ack()

	set := cells.Single(client, cells.Member{Namespace: names})
	reader := hosts.Reader{Redis: client, Prefix: string(names)}
	lifted, err := operate.LiftBlocks(ctx, set, reader, "git.example.com", nil)
	if err != nil || len(lifted) != 1 {
		t.Fatalf("lifted %v, %v", lifted, err)
	}
	select {
	case again := <-messages:
		again.Ack()
	case <-time.After(time.Minute):
		t.Fatal("the change still waits")
	}
}
